FROM python:3.11-slim AS source
WORKDIR /app
COPY . .
# The locked versions, without the hashes, which pip would then want of this project too.
RUN sed -nE 's/^([A-Za-z0-9._-]+==[^ ]+)( ; [^\]+)?.*/\1\2/p' requirements.lock > constraints.txt

# The wheel with the compiled row path: the toolchain stays behind in this stage.
FROM source AS wheel
RUN apt-get update \
    && if apt-cache show cargo-web >/dev/null 2>&1; then toolchain='cargo-web rustc-web'; else toolchain=cargo; fi \
    && apt-get install -y --no-install-recommends gcc libc6-dev $toolchain \
    && sed -nE 's/^((setuptools|setuptools-rust|wheel)==[^ ]+).*/\1/p' requirements.lock > build-tools.txt \
    && PIP_CONSTRAINT=build-tools.txt PIP_BUILD_CONSTRAINT=build-tools.txt pip wheel --no-cache-dir --no-deps --wheel-dir wheels . \
    && python -m zipfile -l wheels/*.whl | grep -q cdc/_native.abi3.so

# The daemon: docker build --target daemon .
FROM python:3.11-slim AS daemon
COPY --from=wheel /app/constraints.txt /app/wheels/ /app/
RUN pip install --no-cache-dir --constraint /app/constraints.txt "$(echo /app/*.whl)[filter,registry]" \
    && useradd --create-home cdc \
    && install -d -o cdc -g cdc /var/lib/tarantool-cdc
USER cdc
VOLUME /var/lib/tarantool-cdc
EXPOSE 8085
ENTRYPOINT ["tarantool-cdc"]
CMD ["run", "--config", "/etc/tarantool-cdc.toml"]

# The Spark jobs: docker build --target spark . The jars are fetched here and not at each start.
FROM source AS spark
# The jobs run from these sources: the wheel leaves out what fetches the jars and sets Java up.
ENV PYTHONPATH=/app
ENV TARANTOOL_CDC_CACHE=/opt/tarantool-cdc
RUN apt-get update \
    && apt-get install -y --no-install-recommends default-jre-headless maven procps \
    && rm -rf /var/lib/apt/lists/* \
    && pip install --no-cache-dir --constraint constraints.txt '.[avro,spark]' \
    && python -m cdc.local.jars spark \
    && rm -rf /root/.m2 \
    && useradd --create-home cdc \
    && install -d -o cdc -g cdc /var/lib/lake
USER cdc
WORKDIR /var/lib/lake
VOLUME /var/lib/lake
ENTRYPOINT ["python", "-m", "cdc.local.spark", "python", "-m", "spark_jobs"]
