"""The documentation site: pages from docs/, and one for each recipe and part."""
