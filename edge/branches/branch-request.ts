import { z } from 'zod';
import { BRANCH_NAME_LENGTH, BranchName } from '../../shared/branch/branch-name.ts';
import { AttemptsPerMinute } from '../../shared/branch/connection-attempts.ts';
import { branchDatabaseName, DATABASE_NAME_MAX, maxSlugLength } from '../../shared/branch/database-name.ts';
import { DatabaseSettingsChange } from '../../shared/branch/database-settings.ts';
import { Labels } from '../../shared/branch/labels.ts';
import { LeaseSeconds } from '../../shared/branch/lease.ts';
import {
  DEFAULT_LIFESPAN,
  type Life,
  LifespanSpelling,
  lifeOf,
  TtlSeconds,
} from '../../shared/branch/lifespan.ts';
import type { Failure } from '../../shared/failures.ts';
import { ALLOWED_NETWORKS_MAX, BATCH_MAX } from '../../shared/limits.ts';
import { BRANCH_DATA, type BranchData, KEEP_TABLES_MAX, TableReference } from '../../shared/masking.ts';
import { type Moment, momentOf } from '../../shared/moment.ts';
import { fail, ok, type Result } from '../../shared/result.ts';
import { CidrOrMe, OWN_ADDRESS } from '../access/network-rule.ts';
import type { ProjectRow } from '../database/schema.ts';
import type { Settings } from '../settings.ts';

const LATEST_SNAPSHOT = 'latest_snapshot';

/** What one branch and a batch of branches have in common. */
const choices = {
  source_branch_id: z
    .uuid()
    .toLowerCase()
    .nullable()
    .default(null)
    .meta({ description: 'The branch to clone. Default: `main`.' }),
  snapshot_id: z
    .uuid()
    .toLowerCase()
    .optional()
    .meta({ description: 'The snapshot to clone, instead of a branch.' }),
  from: z.enum([LATEST_SNAPSHOT]).optional().meta({
    description:
      'Clones the newest snapshot of the source branch that its users or its schedule have taken. The clients of the branch are not held, whatever its age.',
  }),
  data: z.enum(BRANCH_DATA).default('full').meta({
    description:
      '`full`: everything that the source has. `masked`: a copy of the source whose values are replaced by the masking policy of the project; it is made once and serves other branches for a day, so the first one takes longer. `none`: the schema without rows.',
  }),
  keep_tables: z
    .array(TableReference)
    .max(KEEP_TABLES_MAX)
    .default([])
    .meta({
      description: 'With `data: none`: tables whose rows stay, with the schema unless that is `public`.',
      example: ['country'],
    }),
  lifespan: LifespanSpelling.optional().meta({
    description: `Time until the branch expires, in the spellings of the lifespans. Default: \`${DEFAULT_LIFESPAN}\`.`,
  }),
  ttl_seconds: TtlSeconds.optional(),
  lease_seconds: LeaseSeconds.optional(),
  allow: z
    .array(CidrOrMe)
    .max(ALLOWED_NETWORKS_MAX)
    .default([])
    .meta({
      description: 'Networks that may connect to the branch; `me` is the address of the request.',
      example: ['203.0.113.0/24', OWN_ADDRESS],
    }),
  labels: Labels.default({}),
  connection_attempts_per_minute: AttemptsPerMinute.optional().meta({
    description:
      'Connection attempts a minute from all admitted networks together. Default: as in the project.',
  }),
  include: z
    .array(z.enum(['credentials', 'credentials.owner', 'credentials.read_only']))
    .max(1)
    .default([])
    .meta({
      description:
        '`credentials`: the response has the connection URLs, which the audit log records as a view. With a role, both URLs are of that login: the pooled URL of the owner can change the schema, and its clients survive clones of the branch.',
    }),
};

const hasOneLife = (request: { lifespan?: unknown; ttl_seconds?: unknown }) =>
  request.lifespan === undefined || request.ttl_seconds === undefined;
const ONE_LIFE = { message: 'Provide at most one of lifespan and ttl_seconds.', path: ['ttl_seconds'] };

interface SourceFields {
  snapshot_id?: string | undefined;
  from?: string | undefined;
  source_branch_id: string | null;
}
const hasOneSource = ({ snapshot_id, from, source_branch_id }: SourceFields) =>
  snapshot_id === undefined || (from === undefined && source_branch_id === null);
const ONE_SOURCE = {
  message: 'Provide snapshot_id without from and source_branch_id.',
  path: ['snapshot_id'],
};

interface DataFields extends SourceFields {
  data: BranchData;
  keep_tables: readonly string[];
}
const isOfBranch = ({ data, snapshot_id, from }: DataFields) =>
  data === 'full' || (snapshot_id === undefined && from === undefined);
const OF_BRANCH = {
  message: 'Provide data without snapshot_id and from: a snapshot has the data that it has.',
  path: ['data'],
};
const keepsOfNone = ({ data, keep_tables }: DataFields) => data === 'none' || keep_tables.length === 0;
const KEPT_OF_NONE = { message: 'Provide keep_tables with data none, and only then.', path: ['keep_tables'] };

/** A time of the past, in any offset. */
export const PastTime = z.iso
  .datetime({ offset: true })
  .transform((text, context): Moment => {
    const moment = momentOf(text);
    if (moment !== null) return moment;
    context.addIssue({ code: 'custom', message: 'no time' });
    return z.NEVER;
  })
  .meta({
    description:
      'The branch has everything that was committed up to this time, to the microsecond, and nothing later. `recoverable` of the project has the times that can be given.',
    example: '2026-11-23T10:15:00Z',
  });

const isOfBranchNow = ({ at, snapshot_id, from, on_exists }: SourceFields & AtFields) =>
  at === undefined || (snapshot_id === undefined && from === undefined && on_exists !== 'return');
const OF_BRANCH_NOW = {
  message: 'Provide at without snapshot_id and from, and without on_exists return.',
  path: ['at'],
};
interface AtFields {
  at?: Moment | undefined;
  on_exists: string;
}

const OnExists = z.enum(['fail', 'return', 'reset']).default('fail').meta({
  description:
    'If the project has a branch of this name: `fail` is 409; `return` responds with that branch, if it has the same source; `reset` resets it to the source and gives it the life of the request.',
});

export const NewBranch = z
  .strictObject({ branch_name: BranchName, ...choices, at: PastTime.optional(), on_exists: OnExists })
  .refine(hasOneLife, ONE_LIFE)
  .refine(hasOneSource, ONE_SOURCE)
  .refine(isOfBranch, OF_BRANCH)
  .refine(keepsOfNone, KEPT_OF_NONE)
  .refine(isOfBranchNow, OF_BRANCH_NOW)
  .meta({ example: { branch_name: 'checkout-redesign', lifespan: '7d' } });

const NamePrefix = z
  .string()
  .max(BRANCH_NAME_LENGTH.max - 1)
  .regex(/^[a-z0-9_-]+$/, 'only lowercase letters, digits, hyphen and underscore');

export const NewBatch = z
  .strictObject({
    count: z
      .int()
      .min(1)
      .max(BATCH_MAX)
      .optional()
      .meta({ description: 'Number of branches, named with `name_prefix` and a number from 1.' }),
    name_prefix: NamePrefix.optional().meta({
      description: 'Beginning of the names; required with `count`.',
      example: 'pr-7-',
    }),
    names: z
      .array(BranchName)
      .min(1)
      .max(BATCH_MAX)
      .refine((names) => new Set(names).size === names.length, 'must not name a branch twice')
      .optional()
      .meta({ description: 'Names of the branches, instead of `count`.', uniqueItems: true }),
    ...choices,
  })
  .refine(hasOneLife, ONE_LIFE)
  .refine(hasOneSource, ONE_SOURCE)
  .refine(isOfBranch, OF_BRANCH)
  .refine(keepsOfNone, KEPT_OF_NONE)
  .refine(({ count, names }) => (count === undefined) !== (names === undefined), {
    message: 'Provide exactly one of count and names.',
    path: ['count'],
  })
  .refine(({ count, name_prefix }) => (count === undefined) === (name_prefix === undefined), {
    message: 'Provide name_prefix with count, and only then.',
    path: ['name_prefix'],
  })
  .meta({ example: { count: 4, name_prefix: 'pr-7-', lease_seconds: 300 } });

export const BranchChange = z
  .strictObject({
    branch_name: BranchName.optional().meta({
      description:
        'A new name, alone in its request. The database, the connection URLs and the keys of the environment follow it, and all sessions end. The id, the passwords and the rules stay. `main` keeps its name.',
    }),
    lifespan: LifespanSpelling.optional(),
    ttl_seconds: TtlSeconds.optional(),
    protected: z.boolean().optional().meta({
      description: 'For owners and admins. `main` is always protected.',
    }),
    connection_attempts_per_minute: AttemptsPerMinute.nullable().optional().meta({
      description:
        'Connection attempts a minute from all admitted networks together. Null: as in the project.',
    }),
    settings: DatabaseSettingsChange.optional().meta({
      description:
        'Settings of PostgreSQL for new sessions of the branch; null ends one, and what is left out stays. Branches of it inherit them.',
    }),
  })
  .refine(
    (change) => hasOneLife(change) && Object.values(change).some((value) => value !== undefined),
    'Provide one of lifespan and ttl_seconds, protected, connection_attempts_per_minute, settings, or branch_name.',
  )
  .refine(
    ({ branch_name, ...others }) =>
      branch_name === undefined || Object.values(others).every((value) => value === undefined),
    {
      message: 'Provide branch_name alone: the branch gets its new name before anything else changes.',
      path: ['branch_name'],
    },
  )
  .meta({ example: { lifespan: '1m' } });

const invalid = (path: string, message: string): Result<never, Failure> =>
  fail({ code: 'VALIDATION_FAILED', fields: { details: [{ path, message }] } });

/** The names of a batch. @returns or VALIDATION_FAILED: a prefix and a number can make an invalid name */
export function namesOf({
  names,
  count = 0,
  name_prefix = '',
}: z.output<typeof NewBatch>): Result<string[], Failure> {
  const wanted = names ?? Array.from({ length: count }, (_, index) => `${name_prefix}${index + 1}`);
  for (const name of wanted) {
    const { error } = BranchName.safeParse(name);
    const [issue] = error?.issues ?? [];
    if (issue) return invalid('name_prefix', `${name}: ${issue.message}`);
  }
  return ok(wanted);
}

/** @returns the failure if the database name of a branch would be too long */
export function checkDatabaseNames(project: ProjectRow, names: readonly string[]): Result<null, Failure> {
  const { appKey, env } = project;
  const length = Math.max(...names.map((name) => branchDatabaseName(appKey, env, name).length));
  if (length <= DATABASE_NAME_MAX) return ok(null);
  return fail({
    code: 'DATABASE_NAME_TOO_LONG',
    fields: { length, max_slug_length: maxSlugLength(appKey, env) },
  });
}

/** @returns the number of attempts a minute, or CONNECTION_ATTEMPTS_ABOVE_MAX */
export function attemptsWithin(
  wanted: AttemptsPerMinute,
  { CONNECTION_ATTEMPTS_MAX: limit }: Pick<Settings, 'CONNECTION_ATTEMPTS_MAX'>,
): Result<number, Failure> {
  if (wanted === 'max') return ok(limit);
  return wanted <= limit ? ok(wanted) : fail({ code: 'CONNECTION_ATTEMPTS_ABOVE_MAX', fields: { limit } });
}

/** @param creatorCidr what `me` means, if the address is known. @returns or VALIDATION_FAILED if it is not */
export function choicesOf(
  request: Pick<
    z.output<typeof NewBranch>,
    'lifespan' | 'ttl_seconds' | 'lease_seconds' | 'allow' | 'labels' | 'connection_attempts_per_minute'
  >,
  creatorCidr: string | null,
  settings: Pick<Settings, 'CONNECTION_ATTEMPTS_MAX'>,
): Result<BranchChoices, Failure> {
  const allow = request.allow.flatMap((network) => (network === OWN_ADDRESS ? (creatorCidr ?? []) : network));
  if (allow.length < request.allow.length)
    return invalid('allow', 'The address of the request is not known. Provide it instead of me.');
  const { lease_seconds: leaseSeconds = null, labels } = request;
  const wanted = request.connection_attempts_per_minute ?? null;
  const attempts = wanted === null ? ok(null) : attemptsWithin(wanted, settings);
  if (!attempts.ok) return attempts;
  return ok({ life: lifeOf(request), leaseSeconds, labels, allow, attempts: attempts.value });
}

/** The times to which a project, or a branch of it, can be recovered; null: its host keeps no past. */
export function recoverableOf(
  { recoverableFrom, createdAt }: { recoverableFrom: Moment | null; createdAt: Date },
  now: Date,
): { from: Moment; until: Moment } | null {
  const until = momentOf(now.toISOString());
  const since = momentOf(createdAt.toISOString());
  if (recoverableFrom === null || until === null || since === null) return null;
  return { from: since > recoverableFrom ? since : recoverableFrom, until };
}

/**
 * Whether the branch could be recovered as of the time, as its host has last reported. The host decides.
 * @returns or VALIDATION_FAILED for a time in the future, TIME_NOT_RECOVERABLE
 */
export function checkPastTime(
  at: Moment | undefined,
  { recoverableFrom }: { recoverableFrom: Moment | null },
  { createdAt }: { createdAt: Date },
  now: Date,
): Result<null, Failure> {
  if (at === undefined) return ok(null);
  if (Date.parse(at) > now.getTime()) return invalid('at', 'The time is in the future.');
  const window = recoverableOf({ recoverableFrom, createdAt }, now);
  if (window && at >= window.from) return ok(null);
  return fail({ code: 'TIME_NOT_RECOVERABLE', fields: window ?? { from: null, until: null } });
}

/** What a client may choose for new branches. */
export interface BranchChoices {
  life: Life;
  /** Null: without a lease. */
  leaseSeconds: number | null;
  labels: Labels;
  /** Connection attempts a minute; null: as in the project. */
  attempts: number | null;
  /** Networks that get a rule of each branch, besides the creator's. */
  allow: readonly string[];
}
