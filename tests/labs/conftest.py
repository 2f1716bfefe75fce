"""What the tests of laboratories share."""

import pytest


@pytest.fixture
def refused(capsys):
    """What a program says that ends because its user can correct something."""

    def said(main, words):
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert ended.value.code == 2
        return capsys.readouterr().err

    return said
