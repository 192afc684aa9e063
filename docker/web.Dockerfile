# Web and site worker: the same image, started with different commands. No model, no llama.cpp, no bundled servers used.
FROM python:3.12-slim AS build
COPY requirements/web.txt /requirements.txt
RUN python -m venv /venv && /venv/bin/pip install --no-cache-dir --require-hashes -r /requirements.txt

FROM python:3.12-slim
RUN useradd --uid 10001 --create-home --home-dir /srv/state --shell /usr/sbin/nologin smolfleet
COPY --from=build /venv /venv
WORKDIR /srv/app
COPY manage.py ./
COPY inference inference
COPY chatsite chatsite
COPY templates templates
COPY static static
COPY locale locale
ENV PATH=/venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 \
    DJANGO_SETTINGS_MODULE=chatsite.settings STATE_DIR=/srv/state STATIC_ROOT=/srv/static LOG_FORMAT=json
RUN for po in locale/*/LC_MESSAGES/django.po; do pybabel --quiet compile -i $po -o ${po%.po}.mo; done
# The key is for this one command: collecting needs settings that load, not a secret.
RUN SECRET_KEY=only-for-collecting-static-files-at-build-time python manage.py collectstatic --noinput
USER smolfleet
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=3s --start-period=20s --retries=3 \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/health/live', timeout=2)"]
CMD ["python", "-m", "chatsite.server", "-b", "0.0.0.0", "-p", "8000"]
