# The whole service in one image, for trying it (docs/trying.md). Not for production.
ARG BASE=docker.io/library/debian:forky-slim

FROM ${BASE} AS build
RUN apt-get update && apt-get install --yes --no-install-recommends ca-certificates nodejs npm
COPY . /opt/branchgate
WORKDIR /opt/branchgate
# The console is built here, so that the first start need not do it.
RUN npm ci --no-audit --no-fund \
  && export PATH="$PWD/node_modules/.bin:$PATH" \
  && node dev/build/cli.ts && chmod a+x dist/branchgate.mjs \
  && node --eval "import('./dev/build/console.ts').then(({ buildConsole }) => buildConsole('/tmp/console'))"

FROM ${BASE}
RUN apt-get update \
  && apt-get install --yes --no-install-recommends ca-certificates openssl pgbouncer postgresql-client-18 tini \
  && rm -rf /var/lib/apt/lists/* \
  && ln -s /opt/branchgate/node_modules/.bin/node /usr/local/bin/node \
  && ln -s /opt/branchgate/dist/branchgate.mjs /usr/local/bin/branchgate
COPY --from=build /opt/branchgate /opt/branchgate
WORKDIR /opt/branchgate
ENV BRANCHGATE_IMAGE=1 BRANCHGATE_URL=http://127.0.0.1:8787 DEV_DIR=/data \
  GATEWAY_PORT=8787 DIRECT_PORT=5432 POOLED_PORT=6432 GATEWAY_HOST=0.0.0.0 LISTEN_ADDRESSES=0.0.0.0
VOLUME /data
EXPOSE 8787 5432 6432
ENTRYPOINT ["tini", "--", "node", "dev/start.ts"]
