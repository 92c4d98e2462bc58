# docker build -t logd .
#
# In a container the daemon listens on every address, so it starts only if clients have to show a
# token, or if you say that nobody has to. With a token, on any network:
#   docker run --rm -p 1774:1774 -p 1775:1775 -v logd-data:/data \
#     -v "$PWD/access.toml:/run/secrets/access.toml:ro" -e LOGD_ACCESS_FILE=/run/secrets/access.toml logd
# Without, for this machine alone:
#   docker run --rm -p 127.0.0.1:1774:1774 -p 127.0.0.1:1775:1775 -v logd-data:/data \
#     -e LOGD_ALLOW_ANONYMOUS=yes logd
#
# Settings come behind the image's name (logd --fsync always) or as LOGD_<NAME> variables.

FROM python:3.11-slim-bookworm AS build

# For the small C module that speeds up large pushes.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*

RUN python -m venv /opt/logd
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY logd logd
COPY cli cli
RUN /opt/logd/bin/pip install --no-cache-dir --disable-pip-version-check -c constraints.txt .

FROM python:3.11-slim-bookworm

RUN useradd --system --uid 1774 --user-group --no-create-home --shell /usr/sbin/nologin logd \
    && install --directory --owner=logd --group=logd --mode=0700 /data
COPY --from=build /opt/logd /opt/logd
ENV PATH="/opt/logd/bin:$PATH" PYTHONUNBUFFERED=1

USER 1774
VOLUME /data
EXPOSE 1774 1775
# PING needs no token. With TLS, give it LOGD_CA and a --health-cmd with --host tls://<its name>:1774.
HEALTHCHECK --interval=30s --timeout=5s CMD ["log-cli", "--host", "127.0.0.1:1774", "ping"]
# A stop writes everything down first; give it longer than stop-timeout: docker stop --time 20.
ENTRYPOINT ["logd", "--host", "0.0.0.0:1774", "--http-host", "0.0.0.0:1775", "--data-dir", "/data"]
