# docker build -t logd .
#
# In a container the daemon listens on all addresses, so it starts only if clients must authenticate,
# or if anonymous access is allowed explicitly. With tokens, for any network:
#   docker run --rm -p 1774:1774 -p 1775:1775 -v logd-data:/data \
#     -v "$PWD/access.toml:/run/secrets/access.toml:ro" -e LOGD_ACCESS_FILE=/run/secrets/access.toml logd
# Without authentication, for this machine only:
#   docker run --rm -p 127.0.0.1:1774:1774 -p 127.0.0.1:1775:1775 -v logd-data:/data \
#     -e LOGD_ALLOW_ANONYMOUS=yes logd
#
# Give settings after the name of the image (logd --fsync always) or as LOGD_<NAME> variables. The
# steps are those of docs/operations.md; the tests run them in a clean Debian.

FROM debian:bookworm-slim AS build

# The compiler builds the modules that make the daemon faster.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends python3-venv python3-dev gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*

RUN python3 -m venv /opt/logd
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY logd logd
COPY cli cli
COPY pyspark_logd pyspark_logd
RUN /opt/logd/bin/pip install --no-cache-dir --disable-pip-version-check -c constraints.txt . \
    && /opt/logd/bin/pip uninstall --yes --disable-pip-version-check pip setuptools

FROM debian:bookworm-slim

# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends python3 \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --system --uid 1774 --user-group --no-create-home --shell /usr/sbin/nologin logd \
    && install --directory --owner=logd --group=logd --mode=0700 /data
COPY --from=build /opt/logd /opt/logd
ENV PATH="/opt/logd/bin:$PATH" PYTHONUNBUFFERED=1

USER 1774
VOLUME /data
EXPOSE 1774 1775
# The port opens when recovery is complete. PING needs no token. With TLS, set LOGD_CA and a --health-cmd with
# --host tls://<name>:1774.
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s CMD ["log-cli", "--host", "127.0.0.1:1774", "ping"]
# A shutdown writes all data to disk; allow more time than stop-timeout: docker stop --time 20.
STOPSIGNAL SIGTERM
ENTRYPOINT ["logd", "--host", "0.0.0.0:1774", "--http-host", "0.0.0.0:1775", "--data-dir", "/data"]
