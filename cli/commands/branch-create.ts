import { Command, InvalidArgumentError, Option } from 'commander';
import { type BranchData, freeName } from '../../client/leased-branch.ts';
import { dataOf } from '../../client/response-error.ts';
import { bytes } from '../../shared/format.ts';
import { CommandError } from '../exit-codes.ts';
import { collect, readAttempts, readCount, readDuration, readPastTime } from '../option-values.ts';
import { otherAddress } from '../other-address.ts';
import { isJson, printRecord, printRecords, say } from '../output.ts';
import { findBranch, openSession, projectOf, type Session } from '../session.ts';
import { withProgress } from '../terminal.ts';
import { TIMEOUT, waitOf } from './project.ts';
import { findSnapshot } from './snapshot.ts';

const LATEST = 'latest';
const BRANCHES = '/api/v1/projects/{project_id}/branches';

/** Parses a label, and collects an option that can be repeated. */
export function readLabel(
  text: string,
  previous: Record<string, string> | undefined,
): Record<string, string> {
  const [, key, value] = /^([^=]+)=(.*)$/.exec(text) ?? [];
  if (key === undefined || value === undefined) throw new InvalidArgumentError('Give a label as key=value.');
  return { ...previous, [key]: value };
}

/** What a branch has of its source. */
export const dataOption = () =>
  new Option(
    '--data <data>',
    'all data, masked by the policy of the project, or no rows (default: full)',
  ).choices(['full', 'masked', 'none']);

interface NewBranch {
  from?: string;
  data?: BranchData;
  keepTable?: string[];
  snapshot?: string;
  at?: string;
  ttl?: number;
  lease?: number;
  ifExists?: 'fail' | 'return' | 'reset';
  allow?: string[];
  label?: Record<string, string>;
  connectionAttempts?: number | 'max';
  count?: number;
  timeout?: number;
}

export const createCommand = () =>
  new Command('create')
    .description(
      'Create a branch, or several of the same content; direct sessions of the source end, but none if a snapshot is cloned',
    )
    .addHelpText(
      'after',
      `
Each branch counts against the storage quota of its project: in full, as if it shared nothing with its source, unless the
operator counts what branches take of the disk. The command says how much before it begins.`,
    )
    .argument('[name]', 'name of the branch; with --count, the beginning of the names (default: a free one)')
    .option('--from <branch>', 'source, by name or ID (default: main)')
    .addOption(dataOption())
    .option('--keep-table <table>', 'with --data none: a table whose rows stay; can be repeated', collect)
    .option('--snapshot <snapshot>', 'clone a snapshot, by name or ID, or the `latest` of the source')
    .option('--at <time>', 'the source as it was then: `10 minutes ago`, or ISO 8601', readPastTime)
    .option('--ttl <duration>', 'time until the branch expires, for instance 2h', readDuration)
    .option(
      '--lease <duration>',
      'delete the branch unless its lease is renewed within this time',
      readDuration,
    )
    .addOption(new Option('--if-exists <choice>', 'if the name exists').choices(['fail', 'return', 'reset']))
    .option('--allow <network>', 'a network that may connect, or `me`; can be repeated', collect)
    .option('--label <key=value>', 'a label; can be repeated', readLabel)
    .option(
      '--connection-attempts <n>',
      'connections a minute that the branch accepts, or `max` (default: as in the project)',
      readAttempts,
    )
    .option('--count <n>', 'number of branches', readCount)
    .option(...TIMEOUT)
    .action(async (given: string | undefined, options: NewBranch, command: Command) => {
      const session = openSession(command);
      const name = given ?? (await nameOf(session, options));
      const project_id = await projectOf(command, session);
      const choices = await choicesOf(session, project_id, options);
      const init = { params: { path: { project_id } } };
      const wait = waitOf(options);
      const { client } = session;
      if (options.count === undefined) {
        const body = {
          branch_name: name,
          ...choices,
          ...(options.at !== undefined && { at: options.at }),
          ...(options.ifExists && { on_exists: options.ifExists }),
        };
        const made = await withProgress(`Creating ${name}`, () =>
          client.create(BRANCHES, { ...init, body }, wait),
        );
        printRecord(command, made, [
          'branch_name',
          'status',
          'data',
          'expires_at',
          'lease_ends_at',
          'created',
          'id',
        ]);
        if (!isJson(command)) say(`Connect with: branchgate psql ${made.branch_name}`);
        return;
      }
      if (options.at !== undefined) throw new CommandError('usage', '--at and --count exclude each other.');
      if (options.ifExists === 'return' || options.ifExists === 'reset')
        throw new CommandError('usage', `--if-exists ${options.ifExists} and --count exclude each other.`);
      const body = { count: options.count, name_prefix: name, ...choices };
      const made = await withProgress(`Creating ${options.count} branches`, () =>
        client.create(`${BRANCHES}/batch`, { ...init, body }, wait),
      );
      printRecords(command, made.branches, ['branch_name', 'status', 'expires_at', 'lease_ends_at', 'id']);
    });

/** A free name, or the beginning of several. */
async function nameOf({ client }: Session, { count }: NewBranch): Promise<string> {
  const { branch_pattern: pattern = null } = await dataOf(client.api.GET('/api/v1/me'));
  const name = freeName('branch', pattern);
  return count === undefined ? name : `${name}-`;
}

/** PostgreSQL cannot clone a database that has sessions, and only the pooler can hold its clients. */
async function sayWhatEnds({ client }: Session, project_id: string, branch_ref: string): Promise<void> {
  const params = { path: { project_id, branch_ref } };
  // The creation itself says what prevents it.
  const { data } = await client.api
    .GET(`${BRANCHES}/{branch_ref}/sessions`, { params })
    .catch(() => ({ data: undefined }));
  if (!data?.direct_sessions) return;
  const sessions = data.direct_sessions === 1 ? 'direct session' : 'direct sessions';
  say(
    `The clone ends ${data.direct_sessions} ${sessions} of ${branch_ref}. Clients of the pooled URL stay connected, and --snapshot latest ends none.`,
  );
}

/** Says what the branches count against the quota, if the sizes are known. @param source ID of a branch or snapshot */
async function sayWhatCounts(
  { client }: Session,
  project_id: string,
  source: { branch: string } | { snapshot: string },
  count: number,
): Promise<void> {
  const { data } = await client.api
    .GET('/api/v1/projects/{project_id}/usage', { params: { path: { project_id } } })
    .catch(() => ({ data: undefined }));
  const found =
    'branch' in source
      ? data?.branches.find(({ branch_id, branch_name }) => [branch_id, branch_name].includes(source.branch))
      : data?.snapshots.find(({ snapshot_id }) => snapshot_id === source.snapshot);
  if (!data || !found?.next_branch_bytes) return;
  const each = bytes(found.next_branch_bytes);
  const what = count === 1 ? `The branch counts ${each}` : `Each of the ${count} branches counts ${each}`;
  say(
    `${what} against the storage quota, of which ${bytes(data.storage_used_bytes)} of ${bytes(data.storage_limit_bytes)} are used.`,
  );
}

/**
 * The networks that may connect, with the address of this machine that its requests do not come from. The
 * gateway adds the one that they come from.
 */
async function networksOf({ url }: Session, allow: readonly string[] = []): Promise<string[]> {
  const other = await otherAddress(url);
  return [...allow, ...(other !== null && !allow.includes(other) ? [other] : [])];
}

async function choicesOf(session: Session, projectId: string, options: NewBranch) {
  const { from, data, keepTable, snapshot, at, ttl, lease, allow, label, connectionAttempts } = options;
  if (at !== undefined && (snapshot !== undefined || options.ifExists === 'return'))
    throw new CommandError('usage', '--at excludes --snapshot and --if-exists return.');
  const named = snapshot === LATEST ? undefined : snapshot;
  if (named !== undefined && from !== undefined)
    throw new CommandError(
      'usage',
      '--from and --snapshot exclude each other, except for --snapshot latest.',
    );

  const source = from === undefined ? null : await findBranch(session, projectId, from);
  const snapshotId = named === undefined ? null : (await findSnapshot(session, projectId, named)).id;
  const counted = snapshotId === null ? { branch: source?.id ?? 'main' } : { snapshot: snapshotId };
  const [networks] = await Promise.all([
    networksOf(session, allow),
    snapshot === undefined &&
      at === undefined &&
      data !== 'masked' &&
      sayWhatEnds(session, projectId, source?.branch_name ?? 'main'),
    // Which snapshot is the latest is known to the gateway only.
    snapshot !== LATEST && data !== 'none' && sayWhatCounts(session, projectId, counted, options.count ?? 1),
  ]);
  return {
    ...(source && { source_branch_id: source.id }),
    ...(data !== undefined && { data }),
    ...(keepTable && { keep_tables: keepTable }),
    ...(snapshot === LATEST && { from: 'latest_snapshot' as const }),
    ...(snapshotId !== null && { snapshot_id: snapshotId }),
    ...(ttl !== undefined && { ttl_seconds: ttl }),
    ...(lease !== undefined && { lease_seconds: lease }),
    ...(networks.length > 0 && { allow: networks }),
    ...(label && { labels: label }),
    ...(connectionAttempts !== undefined && { connection_attempts_per_minute: connectionAttempts }),
  };
}
