# strop on a CPU. Run it with a folder of yours as the working folder:
#   docker build -t strop . && docker run --rm -it --user "$(id -u)" -v "$PWD:/work" strop train
FROM python:3.11-slim

WORKDIR /opt/strop
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src src
# PyTorch's build without CUDA is two gigabytes smaller; pytorch.org names its index:
#   docker build --build-arg TORCH_INDEX=... -t strop .
ARG TORCH_INDEX=
RUN pip install --no-cache-dir ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} \
        "$(grep '^torch==' constraints.txt)" \
    && pip install --no-cache-dir -c constraints.txt '.[lora,tensorboard]'

RUN useradd --create-home --uid 10001 strop && mkdir /work && chown strop /work
USER 10001
ENV HOME=/tmp
WORKDIR /work
ENTRYPOINT ["strop"]
CMD ["--help"]
