import { execFile } from 'node:child_process';
import {
  chmodSync,
  existsSync,
  globSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { json } from 'node:stream/consumers';
import { decodeJwt } from 'jose';
import type { z } from 'zod';
import { type Context, type JoinOptions, lookAround } from '../../agent/join/context.ts';
import { Machine } from '../../agent/join/machine.ts';
import { applySteps, STEPS, type StepReport, takeBack } from '../../agent/join/steps.ts';
import { enrol } from '../../agent/link/enrol.ts';
import { startOf } from '../../agent/upgrade/trial.ts';
import { certifyServer, makeAuthority } from '../../edge/crypto/x509.ts';
import { FAILURES } from '../../shared/failures.ts';
import {
  CERTIFICATE_PATH,
  CertificateClaims,
  DNS_CHALLENGE_PATH,
  DnsChallengeClaims,
} from '../../shared/protocol/host-certificate.ts';
import { MEMBER_PATH, type MemberReply } from '../../shared/protocol/standby.ts';
import { selfSigned } from './certificates.ts';
import { preparedAgent } from './prepared.ts';
import { oncePerRun } from './run-folder.ts';

const TOKEN = 't'.repeat(43);
const HOST_NAME = 'db1.example.com';
const HOST_ID = 'a4b5e2a4-3a8f-4f3e-9d6c-0a1b2c3d4e5f';

/**
 * What Debian's packages of both servers and of nftables install, with a line of the operator in each file.
 */
const DEBIAN_FILES: Record<string, string> = {
  'etc/passwd': 'postgres:x:0:0::/var/lib/postgresql:/bin/sh\nroot:x:0:0::/root:/bin/sh\n',
  'etc/postgresql/18/main/postgresql.conf': "port = 5432\ninclude_dir = 'conf.d'\n",
  'etc/postgresql/18/main/pg_hba.conf': 'local all postgres peer\nlocal shop app scram-sha-256\n',
  'etc/postgresql/18/main/pg_ident.conf': '',
  'etc/pgbouncer/pgbouncer.ini': '[databases]\nshop = host=127.0.0.1\n',
  'etc/nftables.conf': 'flush ruleset\n',
  'etc/branchgate/agent.env': '# the operator\nBRANCH_CONNECTIONS=70\n',
  'var/lib/postgresql/18/main/PG_VERSION': '18\n',
};

/**
 * Commands of the machine. `$S` is the folder of their state, `$R` the root, `$A` a file of the test run. The real ones
 * are in the nightly test.
 */
const COMMANDS: Record<string, string> = {
  pg_lsclusters: `cat "$S/clusters"`,
  pgbouncer: `cat "$S/pgbouncer"`,
  findmnt: 'echo "ext4 /dev/vda"',
  nft: `[ ! -e "$S/no-nft" ] || exit 127
case "$1 $2" in
  --version*) echo 'nftables v1.0.6' ;;
  'list table') [ -e "$S/table" ] ;;
  --file*) grep -q 'table inet' "$2" && touch "$S/table" ;;
  'delete table') rm "$S/table" ;;
esac`,
  sysctl: `echo "\${2#*=}" >"$R/proc/sys/vm/overcommit_memory"`,
  pgbackrest: 'exit 127',
  logrotate: 'exit 0',
  // The agent's commands get a folder of the root, where no server runs.
  runuser: `shift 3
export STATE_DIR="$R/var/lib/branchgate"
case "$*" in
  *' doctor') # As the real one, which reads the agent's tables.
    [ -e "$S/tables" ] || { echo 'problem: database "branchgate" does not exist'; exit 1; }
    echo 'No problems found.'; exit ;;
  *' make-tables --check') if [ -e "$S/tables" ]; then echo '{"needed":false}'; else echo '{"needed":true}'; fi; exit ;;
  *' make-tables') touch "$S/tables"; exit ;;
  *' copy-primary --check') # The gateway says the same to every machine.
    [ -e "$A" ] || { "$@" >"$A.$$" && mv "$A.$$" "$A"; } || exit
    exec cat "$A" ;;
esac
exec "$@"`,
  psql: `[ -e "$S/postgresql@18-main.service.active" ] || exit 2
case "$*" in
  *'--username branchgate'*) [ -e "$S/own-rules" ] || exit 2 ;;
  *) [ ! -e "$S/own-rules" ] || exit 2 ;;
esac
case "$*" in
  *'CREATE ROLE'*) touch "$S/role" ;;
  *pg_roles*) if [ -e "$S/role" ]; then echo 1; else echo 0; fi ;;
  *pg_is_in_recovery*) if [ -e "$S/standby" ]; then echo t; else echo f; fi ;;
  *pg_database*) echo 2 ;;
  *) echo 1 ;;
esac`,
  systemctl: `echo "$*" >>"$S/calls"
started() { awk '{ printf "%.0f", $1 * 1000000 }' /proc/uptime >"$S/$1.active"
  case $1 in postgresql*) rm -f "$S/own-rules"; ! grep -q 'map=branchgate' "$R/etc/postgresql/18/main/pg_hba.conf" || touch "$S/own-rules" ;;
    branchgate-agent*) cp "$S/run.json" "$R/var/lib/branchgate/run.json" ;; esac; }
case $1 in
  show)
    [ ! -e "$S/$2.active" ] || { echo ActiveState=active; echo "ActiveEnterTimestampMonotonic=$(cat "$S/$2.active")"; }
    [ ! -e "$S/$2.enabled" ] || echo UnitFileState=enabled
    [ -z "$(find "$R/etc/systemd/system" -newer "$S/reloaded" 2>/dev/null)" ] || echo NeedDaemonReload=yes ;;
  daemon-reload) touch "$S/reloaded" ;;
  start | restart) started "$2" ;;
  stop) rm -f "$S/$2.active" ;;
  is-enabled) [ -e "$S/$2.enabled" ] && echo enabled ;;
  enable) touch "$S/$3.enabled"; [ -e "$S/$3.active" ] || started "$3" ;;
  disable) rm -f "$S/$3.enabled" "$S/$3.active" ;;
esac`,
};

/** The gateway's record of a host without a standby. */
const ALONE: z.output<typeof MemberReply> = {
  role: 'primary',
  generation: 0,
  closing: false,
  standby_id: null,
  lease_seconds: null,
  is_renewed: false,
};

/** Ends a run before one of its changes, as a kill does. */
class Killed extends Error {
  override readonly name = 'Killed';
}

/** A folder that stands for a machine, with commands that act on it, and a gateway that enrols it. */
export async function joinMachine() {
  const folder = mkdtempSync(join(tmpdir(), 'branchgate-join-'));
  const root = join(folder, 'root');
  const state = join(folder, 'state');
  const commands = join(folder, 'commands');
  const put = (path: string, content: string) => {
    mkdirSync(dirname(path), { recursive: true });
    writeFileSync(path, content);
  };
  for (const [path, content] of Object.entries(DEBIAN_FILES)) put(join(root, path), content);
  put(join(root, 'proc/sys/vm/overcommit_memory'), '0\n');
  const answers = await oncePerRun('answers-to-joins', async (path) => mkdirSync(path));
  for (const [name, script] of Object.entries(COMMANDS)) {
    put(join(commands, name), `#!/bin/sh\nS=${state}\nR=${root}\nA=${answers}/check\n${script}\n`);
    chmodSync(join(commands, name), 0o755);
  }
  const cluster = {
    version: '18',
    cluster: 'main',
    port: '5432',
    socketdir: '/var/run/postgresql',
    pgdata: '/var/lib/postgresql/18/main',
    configdir: '/etc/postgresql/18/main',
    owneruid: 0,
    running: 1,
  };
  put(join(state, 'clusters'), JSON.stringify([cluster]));
  put(join(state, 'pgbouncer'), 'PgBouncer 1.25.2\n');
  put(join(state, 'calls'), '');
  const run = { pid: process.pid, started: startOf(process.pid), sha256: '', linked: true };
  put(join(state, 'run.json'), JSON.stringify(run));
  for (const unit of ['postgresql@18-main.service', 'pgbouncer.service'])
    put(join(state, `${unit}.active`), '1');

  let enrolments = 0;
  let clockOffMs = 0;
  let acceptsToken = true;
  let setsRecords = true;
  let record: string | null = null;
  let ageOfCertificatesMs = 0;
  let certifies = true;
  const authority = await makeAuthority(new Date());
  const gateway = createServer(async (request, response) => {
    response.setHeader('date', new Date(Date.now() - clockOffMs).toUTCString());
    if (request.url === '/healthz') return response.end('{}');
    if (request.url === MEMBER_PATH) return response.end(JSON.stringify(ALONE));
    if (request.url === DNS_CHALLENGE_PATH) {
      const { token } = (await json(request)) as { token: string };
      if (!setsRecords)
        return response
          .writeHead(409)
          .end('{"error":"DNS_NOT_CONFIGURED","message":"The gateway cannot set DNS records."}');
      record = DnsChallengeClaims.parse(decodeJwt(token)).value;
      return response.end(JSON.stringify({ db_host: HOST_NAME }));
    }
    if (request.url === CERTIFICATE_PATH && !certifies) {
      const { message } = FAILURES.HOST_HAS_AUTHORITY;
      return response.writeHead(409).end(JSON.stringify({ error: 'HOST_HAS_AUTHORITY', message }));
    }
    if (request.url === CERTIFICATE_PATH) {
      const { token } = (await json(request)) as { token: string };
      const { server_key } = CertificateClaims.parse(decodeJwt(token));
      const issuedAt = new Date(Date.now() - ageOfCertificatesMs);
      const certificate = await certifyServer(authority.key, [HOST_NAME], server_key, issuedAt);
      return response.end(JSON.stringify({ db_host: HOST_NAME, certificate }));
    }
    if (!acceptsToken) return response.writeHead(401).end();
    enrolments += 1;
    return response.setHeader('content-type', 'application/json').end(JSON.stringify({ host_id: HOST_ID }));
  });
  await new Promise<void>((resolve) => gateway.listen(0, '127.0.0.1', resolve));
  const url = `http://127.0.0.1:${(gateway.address() as AddressInfo).port}`;
  const certificate = selfSigned(folder, { days: 90 });
  const program = [process.execPath, await preparedAgent()] as const;
  const path = process.env.PATH;
  process.env.PATH = `${commands}:${path}`;

  const OPTIONS: JoinOptions = {
    gateway: url,
    host: 'db1',
    token: TOKEN,
    tlsCert: certificate.certFile,
    tlsKey: certificate.keyFile,
    listen: '*',
  };
  const machineOf = (options: { isDryRun?: boolean; acts?: number }) => {
    let left = options.acts ?? Infinity;
    return new Machine({
      root,
      isDryRun: options.isDryRun ?? false,
      onAct: (what) => {
        if (left-- === 0) throw new Killed(what);
      },
    });
  };

  async function reports(
    act: (context: Context, onDone: (report: StepReport) => void) => Promise<void>,
    options: {
      isDryRun?: boolean;
      acts?: number;
      join?: { [Name in keyof JoinOptions]?: JoinOptions[Name] | undefined };
    } = {},
  ): Promise<{ done: StepReport[]; isKilled: boolean }> {
    const done: StepReport[] = [];
    try {
      const context = await lookAround(
        machineOf(options),
        { ...OPTIONS, ...options.join } as JoinOptions,
        program,
      );
      await act(context, (report) => done.push(report));
      return { done, isKilled: false };
    } catch (error) {
      if (error instanceof Killed) return { done, isKilled: true };
      throw error;
    }
  }
  type RunOptions = Parameters<typeof reports>[1] & { only?: string[] };

  return {
    url,
    root,
    options: OPTIONS,
    certificate,
    enrolments: () => enrolments,
    /** What a join does about the enrolment, without a program. */
    enrol: () =>
      enrol({ gatewayUrl: url, stateDir: join(root, 'var/lib/branchgate'), token: TOKEN, force: false }),
    acceptToken(accepts: boolean) {
      acceptsToken = accepts;
    },
    /** The TXT records that the gateway has set. */
    txtRecords: (name: string) =>
      record !== null && name === `_acme-challenge.${HOST_NAME}` ? [record] : [],
    setChallenges(sets: boolean) {
      setsRecords = sets;
    },
    /** The operator gave the host an authority of another kind. */
    refuseCertificates() {
      certifies = false;
    },
    /** The authority of the gateway, in PEM form. */
    authority: authority.certificate,
    /** How long ago the gateway's authority issued what it issues next. */
    ageCertificates(days: number) {
      ageOfCertificatesMs = days * 86_400_000;
    },
    /** Makes the gateway's clock differ from this machine's. */
    setClock(offMs: number) {
      clockOffMs = offMs;
    },
    /** @param acts number of changes after which the run is killed */
    join: ({ only, ...options }: RunOptions = {}) =>
      reports(
        (context, onDone) =>
          applySteps(
            context,
            STEPS.filter(({ name }) => only?.includes(name) ?? true),
            onDone,
          ),
        options,
      ),
    /** Runs the control tool as a program. */
    command: (...words: string[]) =>
      new Promise<{ exitCode: number; stdout: string; stderr: string }>((resolve) =>
        execFile(program[0], [program[1], ...words, '--root', root], (error, stdout, stderr) =>
          resolve({ exitCode: error ? Number(error.code) : 0, stdout, stderr }),
        ),
      ),
    leave: (options: RunOptions = {}) => reports(takeBack, options),
    read: (name: string) => readFileSync(join(root, name), 'utf8'),
    exists: (name: string) => existsSync(join(root, name)),
    write: (name: string, content: string) => put(join(root, name), content),
    setState: (name: string, content: string | null) =>
      content === null ? rmSync(join(state, name), { force: true }) : put(join(state, name), content),
    hasState: (name: string) => existsSync(join(state, name)),
    /** Calls of systemctl that change something. */
    calls: () =>
      readFileSync(join(state, 'calls'), 'utf8')
        .split('\n')
        .filter((line) => line && !/^(show|is-enabled)/.test(line)),
    /** Every file with its content, save for what differs between two runs. */
    files: (): Record<string, string> =>
      Object.fromEntries(
        globSync('**', { cwd: root })
          .filter((name) => statSync(join(root, name)).isFile() && !/host\.json$|joined\.json$/.test(name))
          .sort()
          .map((name) => [name, readFileSync(join(root, name), 'utf8')]),
      ),
    async stop() {
      process.env.PATH = path;
      gateway.closeAllConnections();
      await new Promise((resolve) => gateway.close(resolve));
      rmSync(folder, { recursive: true, force: true });
    },
  };
}

export type JoinMachine = Awaited<ReturnType<typeof joinMachine>>;
