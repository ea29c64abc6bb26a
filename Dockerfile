# oomph beside the CUDA build of torch. `docker build -t oomph .`; docs/howto/containers.md has the rest.
ARG PYTHON=3.12
FROM rust:1.95-slim-bookworm AS build
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev python3 python3-pip \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /oomph
COPY . .
RUN pip wheel --no-deps --wheel-dir /wheels .

FROM python:${PYTHON}-slim-bookworm
ARG TORCH=2.11.0
# torch.compile wants a C compiler, as on any machine.
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/* \
    && pip install --no-cache-dir "torch==${TORCH}" numpy
COPY --from=build /wheels/*.whl /tmp/
RUN pip install --no-cache-dir /tmp/*.whl && rm /tmp/*.whl && useradd --create-home oomph
USER oomph
WORKDIR /work
ENTRYPOINT ["oomph"]
CMD ["--help"]
