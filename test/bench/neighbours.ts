import { appendFileSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { hostFolder } from '../../dev/stack/host-folder.ts';
import { connectOnHost, socketsOf } from '../support/host/host-session.ts';
import type { Attack } from '../support/neighbours/attack.ts';
import { ATTACKS, type AttackName } from '../support/neighbours/attacks.ts';
import { firewallHindrance } from '../support/neighbours/firewall.ts';
import { type Outcome, Stage } from '../support/neighbours/stage.ts';
import { type Stack, startStack, temporaryFolder } from '../support/stack/stack.ts';
import type { Goal, Report } from './report.ts';
import { serverVersions } from './xfs-stack.ts';

const P99_TIMES_IDLE = 5;
const REVOKED_WITHIN_MS = 5_000;
/** What stands for a victim that gets no response, or a revocation that fails, in a table of milliseconds. */
const NEVER_MS = 15_000;

const METHOD = `One tenant attacks, another one is measured. Both have a project on the same host; the attack runs in a \
process of its own, with the weakest login that can do it. The victim makes 20 transactions a second on each port, on \
connections that it holds and every four seconds on a new one, and reads rows through the API once a second; meanwhile it \
makes a branch and rotates its passwords. A transaction's time begins when it is due, and after 5 s, or five times the slowest one before the attack, it has failed. In the \
middle of the attack the attacker's access is revoked: its network rule is removed, its passwords are rotated or its project \
is deleted. *Before* is the agent with GUARDS=off and both servers with the settings of the release before; *after* is \
everything as it is installed. Floods end after 300 MB. Judged are the victim's failed transactions, the 99th percentile where only \
processor and disk are shared, and how long the revocation takes.`;

/** What the release before had, or PostgreSQL's defaults where it had nothing. */
const POSTGRES_BEFORE = `
max_connections = 400
max_locks_per_transaction = 64
max_notify_queue_pages = 1048576
client_connection_check_interval = 0
authentication_timeout = 60s
log_rotation_size = 0
`;
const POOLER_BEFORE: Record<string, string> = { max_client_conn: '200', client_login_timeout: '15' };

type Side = 'before' | 'after';

/** What the victim of each attack notices, without and with what protects it. @param signal ends it */
export async function measureNeighbours(signal: AbortSignal): Promise<Report> {
  const hindrance = firewallHindrance();
  const names = (Object.keys(ATTACKS) as AttackName[]).filter((name) => {
    const attack: Attack = ATTACKS[name];
    return !attack.needsSmallVolume && !(attack.needsFirewall && hindrance);
  });
  const outcomes: Record<Side, Map<AttackName, Outcome>> = { before: new Map(), after: new Map() };
  let versions: Record<string, string> = {};
  for (const side of ['before', 'after'] as const) {
    await onStage(side, hindrance === null, async (stage) => {
      versions = await serverVersions(stage.stack);
      for (const name of names) {
        signal.throwIfAborted();
        outcomes[side].set(name, await stage.run(name));
      }
    });
  }
  return report(names, outcomes, {
    ...versions,
    'packet filter': hindrance ?? 'nftables',
  });
}

async function onStage(side: Side, firewall: boolean, use: (stage: Stage) => Promise<void>): Promise<void> {
  const devDir = temporaryFolder();
  try {
    if (side === 'before') {
      const first = await startStack({ devDir });
      const { data_dir } = first.state;
      await first.stop();
      appendFileSync(join(data_dir, 'postgresql.auto.conf'), POSTGRES_BEFORE);
    }
    const stage = await Stage.start({
      devDir,
      ...(side === 'before' ? { env: { GUARDS: 'off' }, prepare: setPoolerBack } : { firewall }),
    });
    try {
      await use(stage);
    } finally {
      await stage.stop();
    }
  } finally {
    rmSync(devDir, { recursive: true, force: true });
  }
}

/** In its file, because each reload of the agent's reads that again. */
async function setPoolerBack({ state }: Stack): Promise<void> {
  const file = join(hostFolder(state.host_dir, {}).config, 'pgbouncer.ini');
  const lines = readFileSync(file, 'utf8')
    .split('\n')
    .filter(
      (line) =>
        !(line.split(' ')[0] ?? '').match(/^(max_db_connections|max_client_conn|client_login_timeout)$/),
    );
  const settings = Object.entries(POOLER_BEFORE).map(([name, value]) => `${name} = ${value}`);
  writeFileSync(file, `${[...lines, ...settings].join('\n')}\n`);
  const console = await connectOnHost(socketsOf(state).pooler, 'pgbouncer');
  try {
    await console.query('RELOAD');
  } finally {
    await console.end();
  }
}

function report(
  names: AttackName[],
  outcomes: Record<Side, Map<AttackName, Outcome>>,
  setting: Record<string, string>,
): Report {
  const rows = (value: (outcome: Outcome, attack: Attack) => number) =>
    Object.fromEntries(
      names.flatMap((name) =>
        (['before', 'after'] as const).flatMap((side) => {
          const outcome = outcomes[side].get(name);
          return outcome ? [[`${name}, ${side}`, [value(outcome, ATTACKS[name])]]] : [];
        }),
      ),
    );
  const idle = Object.fromEntries(
    (['before', 'after'] as const).map((side) => [
      `idle, ${side}`,
      [...outcomes[side].values()].map((outcome) => outcome.idle.p99),
    ]),
  );
  return {
    title: 'One tenant attacks, another is measured',
    method: METHOD,
    setting,
    goals: names.flatMap((name) => goalsOf(name, outcomes.after.get(name) as Outcome)),
    times: {
      "Victim's transactions, 99th percentile": { ...idle, ...rows(({ during }) => orNever(during.p99)) },
      "Victim's transactions, median": rows(({ during }) => orNever(during.p50)),
      'Rotation by another tenant': rows(({ rotationMs }) => orNever(rotationMs)),
      'Until the revocation of the attacker is in effect': rows(({ revokedMs }, { revocation }) =>
        revocation ? orNever(revokedMs) : 0,
      ),
    },
    counts: { "Victim's failed transactions and reads": rows(failed) },
  };
}

const failed = ({ during }: Outcome) => Object.values(during.failures).reduce((sum, n) => sum + n, 0);

const orNever = (value: number | string | null) => (Number.isFinite(value) ? Number(value) : NEVER_MS);

function goalsOf(name: AttackName, outcome: Outcome): Goal[] {
  const attack: Attack = ATTACKS[name];
  return [
    { name: `${name}: victim's failures`, measured: failed(outcome), limit: 0, unit: 'transactions' },
    ...(attack.boundsLatency
      ? [
          {
            name: `${name}: victim's p99 ÷ idle`,
            measured: outcome.during.p99 / outcome.idle.p99,
            limit: P99_TIMES_IDLE,
            unit: '×',
          } as const,
        ]
      : []),
    ...(attack.revocation
      ? [
          {
            name: `${name}: revocation (${attack.revocation})`,
            measured: orNever(outcome.revokedMs),
            limit: REVOKED_WITHIN_MS,
            unit: 'ms',
          } as const,
        ]
      : []),
  ];
}
