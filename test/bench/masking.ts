import { setTimeout } from 'node:timers/promises';
import type { Client } from 'pg';
import { Api, FROM_LOOPBACK } from '../support/api.ts';
import { query } from '../support/database.ts';
import { connectOnHost, socketsOf } from '../support/host/host-session.ts';
import { dropSnapshot, purgeBranch } from '../support/records/jobs.ts';
import { type Stack, UNLIMITED } from '../support/stack/stack.ts';
import { connectToClone, endSessions, makeBareClone } from './bare-clone.ts';
import type { Report } from './report.ts';
import { addSample, medianRatio, runInterleaved, type Series, timed } from './rounds.ts';
import { onXfsStack, serverVersions } from './xfs-stack.ts';

const DISK_BYTES = 8 * 2 ** 30;
const ROWS = 200_000;
const ROUNDS = 3;
/** A branch takes a fraction of a second, so that a busy moment would decide few rounds. */
const BRANCH_ROUNDS = 8;
const SAMPLED = 2;
const LIMIT = 1.2;
const SAMPLE_EVERY_MS = 20;
const SPARE_READY_MS = 300;

const METHOD = `A main with ${ROWS.toLocaleString('en')} persons on XFS with reflink in a loopback file, everything else as \`npm start\` runs it, all \
on this machine. Interleaved, ${BRANCH_ROUNDS} rounds of each kind of branch and ${ROUNDS} of maskings, each after a first one that is discarded. A plain branch is a clone of a snapshot, and a masked one \
is requested with \`data: masked\` while the masked snapshot is there; both are measured until their 201, first without spares, \
then with one of each snapshot that is ready before. Masking is \`POST …/snapshots\` with \
\`data: masked\` and rules for three columns, until its 201. By hand: a bare clone, one \`UPDATE\` of the same columns by \`sha256\`, and \
\`VACUUM (FULL, ANALYZE)\` of the table. Masking also compares each row, rewrites catalogs, and leaves no login a way in. The limits apply to the median \
of the ratios in each round. Nobody uses main, so the host has nothing to compare again: each comparison of main with the policy would \
be a session in it. The parts are those of ${SAMPLED} \
further maskings: what the session of the masking was seen to run, every ${SAMPLE_EVERY_MS} ms.`;

const PERSONS = `create table person (id int primary key, email text, name text, phone text, note text);
  insert into person select n, 'person' || n || '@example.com', 'Ada Lovelace', '+44 20 ' || lpad(n::text, 8, '0'), repeat('x', 100)
  from generate_series(1, ${ROWS}) as n`;
const RULES = [
  { table: 'person', column: 'email', with: 'email' },
  { table: 'person', column: 'name', with: 'name' },
  { table: 'person', column: 'phone', with: 'text_redact' },
];
const BY_HAND = `update person set email = left(encode(sha256(email::bytea), 'hex'), 20) || '@example.com',
  name = left(encode(sha256(name::bytea), 'hex'), 12), phone = regexp_replace(phone, '[0-9]', '0', 'g')`;

/** Measures masked branches and a masking. @param signal aborts it */
export const measureMasking = (signal: AbortSignal): Promise<Report> =>
  onXfsStack(signal, DISK_BYTES, measure, UNLIMITED);

/** What a statement of the masking is part of; the first pattern that fits. */
const PARTS: readonly (readonly [pattern: RegExp, part: string])[] = [
  [/^WITH changed/, 'replacing and comparing values'],
  [/^SELECT count\(\*\) AS rows/, 'counting rows'],
  [/^VACUUM \(FULL, ANALYZE\)/, 'writing and analysing the table again'],
  [/^VACUUM \(FULL\) pg_catalog/, 'writing catalogs again'],
  [/./, 'other statements'],
];

/** Runs a masking, and adds to `series` the time in which each part was seen. */
async function sampleParts(session: Client, series: Series, mask: () => Promise<number>): Promise<void> {
  const seen = new Map<string, number>();
  const state = { isOver: false };
  const masking = mask().finally(() => {
    state.isOver = true;
  });
  let from = performance.now();
  while (!state.isOver) {
    const { rows } = await session.query<{ query: string }>(
      "SELECT query FROM pg_stat_activity WHERE application_name = 'branchgate-masking' AND state = 'active'",
    );
    const query = rows[0]?.query;
    const [, part] = PARTS.find(([pattern]) => query !== undefined && pattern.test(query)) ?? [];
    const to = performance.now();
    const name = part ?? 'clone, login, records and removal';
    seen.set(name, (seen.get(name) ?? 0) + to - from);
    from = to;
    await setTimeout(SAMPLE_EVERY_MS);
  }
  await masking;
  for (const [part, ms] of seen) addSample(series, part, ms);
}

/** The longest that the gateway waits for what it makes. */
const WAITING = { ...FROM_LOOPBACK, Prefer: 'wait=60' };

async function measure(stack: Stack): Promise<Report> {
  const api = new Api(stack.url, await stack.token());
  const session = await connectToClone(stack);
  const project = await api.project('Masking', { storage_quota_gib: 5 });
  await api.allow(project.id);
  const main = await api.credentials(project.id, 'main');
  await query(main.direct_url, PERSONS);
  const path = `/api/v1/projects/${project.id}`;
  await api.call('PUT', `${path}/masking`, { body: { rules: RULES, unlisted: 'keep' } });
  const snapshots = `${path}/branches/main/snapshots`;
  /** @throws Error also for 202, whose time would be too short */
  const made = async (where: string, body: object) => {
    const { status, body: record } = await api.post<{ id: string }>(where, body, WAITING);
    if (status !== 201) throw new Error(`${where}: ${status} ${JSON.stringify(record)}`);
    return record.id;
  };
  const timedMaking = async (where: string, body: object, drop: (id: string) => Promise<void>) => {
    let id = '';
    const ms = await timed(async () => {
      id = await made(where, body);
    });
    await drop(id);
    return ms;
  };
  const branch = (more: object) =>
    timedMaking(`${path}/branches`, { branch_name: 'round', ...more }, (id) =>
      purgeBranch(api, project.id, id),
    );
  const byHand = async () => {
    const name = 'by_hand';
    await endSessions(session, main.database);
    const ms = await timed(async () => {
      await makeBareClone(session, main.database, name);
      const clone = await connectOnHost(socketsOf(stack.state).postgres, 'branchgate', name);
      try {
        await clone.query(BY_HAND);
        await clone.query('vacuum (full, analyze) person');
      } finally {
        await clone.end();
      }
    });
    await session.query(`drop database ${name}`);
    return ms;
  };
  const masking = () => timedMaking(snapshots, { data: 'masked' }, (id) => dropSnapshot(api, project.id, id));
  const wantSpares = async (ids: readonly string[], spares: number) => {
    for (const id of ids) await api.patch(`${path}/snapshots/${id}`, { spares });
  };
  const untilSpares = async (count: number) => {
    const sql = "select from pg_database where datname ~ '^bgspare_' and datconnlimit <> -2";
    while ((await session.query(sql)).rows.length !== count) await setTimeout(SAMPLE_EVERY_MS);
    // The agent counts one as ready a little later.
    await setTimeout(SPARE_READY_MS);
  };
  const sessionsInMain = async () => {
    const sql = 'select sessions from pg_stat_database where datname = $1';
    const { rows } = await session.query<{ sessions: string }>(sql, [main.database]);
    return Number(rows[0]?.sessions);
  };
  try {
    const plain = await made(snapshots, {});
    // The one that the masked branches are clones of.
    const masked = await made(snapshots, { data: 'masked' });
    const before = await sessionsInMain();
    // Otherwise the host makes some of the newer snapshot first.
    await wantSpares([plain, masked], 0);
    const ofBranches = await runInterleaved(BRANCH_ROUNDS, {
      'plain branch': () => branch({ snapshot_id: plain }),
      'masked branch': () => branch({ data: 'masked' }),
    });
    await wantSpares([plain, masked], 1);
    const withSpare = async (more: object) => {
      await untilSpares(2);
      return branch(more);
    };
    const ofSpares = await runInterleaved(BRANCH_ROUNDS, {
      'plain branch, spare': () => withSpare({ snapshot_id: plain }),
      'masked branch, spare': () => withSpare({ data: 'masked' }),
    });
    const comparisons = (await sessionsInMain()) - before;
    await wantSpares([plain, masked], 0);
    await untilSpares(0);
    const ofMaskings = await runInterleaved(ROUNDS, { 'by hand': byHand, masking });
    const times = { ...ofBranches, ...ofSpares, ...ofMaskings };
    const parts: Series = {};
    for (let n = 0; n < SAMPLED; n += 1) await sampleParts(session, parts, masking);
    const ratio = (name: string, one: keyof typeof times, other: keyof typeof times) => ({
      name,
      measured: medianRatio(times[one], times[other]),
      limit: LIMIT,
      unit: '×' as const,
    });
    return {
      title: 'Masking',
      method: METHOD,
      setting: {
        ...(await serverVersions(stack)),
        [`sessions in main during ${2 * (BRANCH_ROUNDS + 1)} masked branches`]: String(comparisons),
      },
      goals: [
        ratio('masked branch ÷ plain branch', 'masked branch', 'plain branch'),
        ratio('the same, both of a spare', 'masked branch, spare', 'plain branch, spare'),
        ratio('masking ÷ UPDATE and VACUUM FULL by hand', 'masking', 'by hand'),
      ],
      times: { Milliseconds: times, 'Parts of a masking': parts },
    };
  } finally {
    await session.end();
  }
}
