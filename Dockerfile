# syntax=docker/dockerfile:1
# The picker's image: `docker build -t gorgo-epp .`; everything for `epp serve` in a cluster, and for its
# sidecars `epp tune` and `epp learn`, which come with gorgo-epp-lab; no compiler, no shell
# scripts, not root. Reproducible: pin the base by digest (PYTHON_IMAGE=...@sha256:...), give SOURCE_DATE_EPOCH,
# and the versions come from deploy/image/constraints.txt.
ARG PYTHON_IMAGE=python:3.13-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
# EXTRAS=kubernetes,tls,zstd,cluster,otel,tokenizers adds the models' own tokenizers (docs/tokenizers.md); `envoy` renders configurations.
ARG EXTRAS=kubernetes,tls,zstd,cluster,otel
ARG SOURCE_DATE_EPOCH=0
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore \
    PYTHONDONTWRITEBYTECODE=1 SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH}
WORKDIR /src
COPY deploy/image/constraints.txt ./
COPY pyproject.toml README.md LICENSE ./
COPY epp ./epp
COPY lab ./lab
# Wheels alone: nothing is compiled, neither here nor later. nkeys has none; it is pure Python.
RUN python -m venv /build \
 && python -m venv --without-pip /opt/epp \
 && /build/bin/pip install --only-binary :all: --constraint constraints.txt hatchling setuptools \
 && /build/bin/pip wheel --no-deps --no-build-isolation --constraint constraints.txt --wheel-dir /wheels . ./lab nkeys \
 && /build/bin/pip --python /opt/epp/bin/python install --only-binary :all: --no-compile \
    --constraint constraints.txt --find-links /wheels "$(ls /wheels/gorgo_epp-*.whl)[${EXTRAS}]" /wheels/gorgo_epp_lab-*.whl

FROM ${PYTHON_IMAGE}
LABEL org.opencontainers.image.title="gorgo-epp" \
      org.opencontainers.image.description="An endpoint picker for LLM inference behind Envoy" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/epp /opt/epp
# The root file system may be read-only: nothing is written but to volumes.
ENV PATH=/opt/epp/bin:${PATH} PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
USER 65532:65532
WORKDIR /tmp
EXPOSE 9002 9003 9090
STOPSIGNAL SIGTERM
# `/app/epp FLAGS`, as KServe's templates call llm-d's picker.
COPY --chmod=755 deploy/image/app-epp /app/epp
# `epp serve`, as llm-d's charts call their picker with flags alone; another command names itself: `epp tune`.
ENTRYPOINT ["epp", "serve"]
