import { and, desc, eq, type SQL, sql } from 'drizzle-orm';
import { z } from 'zod';
import type { Failure } from '../../shared/failures.ts';
import { type MaskingRule, MaskingRules, UNLISTED } from '../../shared/masking.ts';
import { columnOf } from '../../shared/masking-names.ts';
import { fail, ok, type Result } from '../../shared/result.ts';
import { auditEvent } from '../audit/audit-event.ts';
import { fromBase64, type SecretKey, seal, toBase64, unseal } from '../crypto/seal.ts';
import type { Actor } from '../database/column-types.ts';
import { inActiveProject } from '../database/conditions.ts';
import { type Database, insertIf, type Statement } from '../database/database.ts';
import { guardedWrite } from '../database/guarded-write.ts';
import { maskingKeys, maskingPolicies } from '../database/masking-schema.ts';
import { auditEvents, type projectBranches } from '../database/schema.ts';

export const NewMaskingPolicy = z
  .strictObject({
    rules: MaskingRules.meta({
      description: 'One rule for each column whose values are replaced.',
    }),
    unlisted: z.enum(UNLISTED).default('refuse_likely_personal').meta({
      description:
        'What becomes of columns without a rule. `refuse_likely_personal`: no masked branch is made while one of them looks personal.',
    }),
  })
  .meta({
    example: {
      rules: [
        { table: 'customer', column: 'email', with: 'email' },
        { table: 'customer', column: 'born_on', with: 'date_shift', args: { days: 30, per: 'id' } },
      ],
      unlisted: 'refuse_likely_personal',
    },
  });

export const MaskingPolicy = z
  .strictObject({
    version: z.int().nonnegative().meta({
      description: 'Counts the changes of the policy. 0: none was ever set.',
      example: 3,
    }),
    etag: z.string().meta({ description: 'For `If-Match`; the same as the header.', example: '"3"' }),
    rules: z.array(MaskingRules.element),
    unlisted: z.enum(UNLISTED),
    changed_by: z.uuid().nullable().meta({ description: 'Null if the policy was never set.' }),
    changed_at: z.iso.datetime().nullable().meta({ description: 'Null if the policy was never set.' }),
  })
  .meta({ id: 'MaskingPolicy' });

const Problem = z.strictObject({
  table: z.string().meta({ example: 'public.customer' }),
  column: z.string().nullable().meta({ description: 'Null: the whole table.', example: 'email2' }),
  reason: z.string().meta({ example: 'its name says e-mail' }),
});

const Suggestions = z.array(
  z.strictObject({
    table: z.string().meta({ example: 'public.customer' }),
    column: z.string().meta({ example: 'phone' }),
    type: z.string().meta({ example: 'text' }),
    reason: z.string().meta({ example: 'its name says phone number' }),
    with: z.string().meta({ description: 'A function that fits.', example: 'phone' }),
  }),
);

/** The policy, compared with `main` as it is now. */
export const ComparedPolicy = MaskingPolicy.extend({
  problems: z.array(Problem).nullable().meta({
    description: 'Why no masked branch of `main` could be made now. Null: `main` could not be read.',
  }),
  suggestions: Suggestions.nullable().meta({
    description:
      'Columns of `main` without a rule that look personal, by name, type, and samples of their values. Null: `main` could not be read.',
  }),
}).meta({ id: 'ComparedMaskingPolicy' });

/** A policy, compared with a branch as it is now. */
export const MaskingCheck = z
  .strictObject({
    branch_id: z.uuid(),
    branch_name: z.string().meta({ example: 'pr-7' }),
    version: z
      .int()
      .positive()
      .nullable()
      .meta({ description: 'Of the policy. Null: `rules` were sent.', example: 3 }),
    covered: z.boolean().meta({ description: 'A masked branch of it could be made.', example: false }),
    problems: z.array(Problem).meta({ description: 'Why none could be made.' }),
    suggestions: Suggestions.meta({
      description:
        'Columns without a rule that look personal. They are problems too, unless `unlisted` is `keep`.',
    }),
  })
  .meta({ id: 'MaskingCheck' });

export const MaskingPreview = z
  .strictObject({
    table: z.string(),
    columns: z.array(
      z.strictObject({
        name: z.string(),
        type: z.string(),
        with: z
          .string()
          .nullable()
          .meta({ description: 'Null: the column stays as it is.', example: 'email' }),
      }),
    ),
    rows: z
      .array(
        z.strictObject({ before: z.array(z.string().nullable()), after: z.array(z.string().nullable()) }),
      )
      .meta({ description: 'Values as text, cut after 200 characters, in the order of `columns`.' }),
    problems: z.array(Problem).meta({ description: 'Why a rule of the table cannot be applied.' }),
  })
  .meta({ id: 'MaskingPreview' });

type PolicyRow = typeof maskingPolicies.$inferSelect;

const etagOf = (version: number) => `"${version}"`;

/** @param row undefined: the policy was never set */
export const toMaskingResponse = (row: PolicyRow | undefined): z.output<typeof MaskingPolicy> => ({
  version: row?.version ?? 0,
  etag: etagOf(row?.version ?? 0),
  rules: row?.rules ?? [],
  unlisted: row?.unlisted ?? 'refuse_likely_personal',
  changed_by: row?.createdBy ?? null,
  changed_at: row?.createdAt.toISOString() ?? null,
});

/** The newest version of the policy; no row if it was never set. */
export const currentPolicy = (db: Database, projectId: string) =>
  db
    .select()
    .from(maskingPolicies)
    .where(eq(maskingPolicies.projectId, projectId))
    .orderBy(desc(maskingPolicies.version))
    .limit(1);

/** The version of that policy; no row if it was never set. */
export const currentVersion = (db: Database, projectId: string) =>
  db
    .select({ version: maskingPolicies.version })
    .from(maskingPolicies)
    .where(eq(maskingPolicies.projectId, projectId))
    .orderBy(desc(maskingPolicies.version))
    .limit(1);

/** For what needs a policy in a project without one. */
export const noPolicy = (): Failure => ({
  code: 'MASKING_INCOMPLETE',
  fields: {
    message: 'The project has no masking policy. Set one first, and repeat the request.',
    columns: [],
  },
});

/** RFC 9110 section 13.1.1, for an entity that always exists. */
const isMatch = (ifMatch: string, version: number): boolean =>
  ifMatch.split(',').some((tag) => tag.trim() === '*' || tag.trim() === etagOf(version));

const KEY_BYTES = 32;
/** What the sealed key of a project is bound to. */
const sealContext = (projectId: string) => ['masking', projectId];

async function newKey(keys: readonly SecretKey[], projectId: string, now: Date) {
  const bytes = crypto.getRandomValues(new Uint8Array(KEY_BYTES));
  const { keyId, sealed } = await seal(keys, sealContext(projectId), toBase64(bytes));
  return { projectId, keyId, sealedKey: sealed, createdAt: now };
}

/** A version of the policy; no row if there is none. */
export const policyOfVersion = (
  db: Database,
  { projectId, version }: { projectId: string; version: number },
) =>
  db
    .select()
    .from(maskingPolicies)
    .where(and(eq(maskingPolicies.projectId, projectId), eq(maskingPolicies.version, version)));

/**
 * Gives the project another key, if it has one. Members who know how guesses were masked before learn nothing of what is
 * masked from then on.
 * @returns the statement, which has no effect unless its condition holds
 */
export async function replacingKey(
  db: Database,
  keys: readonly SecretKey[],
  projectId: string,
  now: Date,
): Promise<(condition: SQL) => Statement> {
  const key = await newKey(keys, projectId, now);
  return (condition) =>
    db
      .update(maskingKeys)
      .set(key)
      .where(and(eq(maskingKeys.projectId, projectId), condition));
}

type Masked = Pick<typeof projectBranches.$inferSelect, 'id' | 'isDefault' | 'data'>;

/**
 * The key by which the values of a branch are masked: that of the project for a full `main`, otherwise one that is derived
 * from the branch. Members without the data of `main` can write to other branches. With its key, a guess that they write
 * there would get the masked value that it has in a copy of `main`.
 */
async function keyOfBranch(key: string, { id, isDefault, data }: Masked): Promise<string> {
  if (isDefault && data === 'full') return key;
  const hmac = { name: 'HMAC', hash: 'SHA-256' };
  const imported = await crypto.subtle.importKey('raw', fromBase64(key), hmac, false, ['sign']);
  const derived = await crypto.subtle.sign('HMAC', imported, new TextEncoder().encode(`branch:${id}`));
  return toBase64(new Uint8Array(derived));
}

/**
 * A version of the policy with the key of the branch that is masked. The same value of `main` is masked alike in every
 * version and every copy.
 * @returns null if there is no such version
 */
export async function readMasking(
  db: Database,
  keys: readonly SecretKey[],
  wanted: { projectId: string; version: number; branch: Masked },
): Promise<Masking | null> {
  const { projectId } = wanted;
  const [[policy], [row]] = await db.batch([
    policyOfVersion(db, wanted),
    db.select().from(maskingKeys).where(eq(maskingKeys.projectId, projectId)),
  ]);
  if (!policy || !row) return null;
  const sealed = { keyId: row.keyId, sealed: row.sealedKey };
  const key = await keyOfBranch(await unseal(keys, sealContext(projectId), sealed), wanted.branch);
  return { rules: policy.rules, unlisted: policy.unlisted, key };
}

/** The key by which a preview masks: that of the project, or any before the first version. */
export async function previewKey(
  db: Database,
  keys: readonly SecretKey[],
  projectId: string,
): Promise<string> {
  const [row] = await db.select().from(maskingKeys).where(eq(maskingKeys.projectId, projectId));
  if (!row) return toBase64(crypto.getRandomValues(new Uint8Array(KEY_BYTES)));
  return unseal(keys, sealContext(projectId), { keyId: row.keyId, sealed: row.sealedKey });
}

/** What the host takes of a policy. */
interface Masking {
  rules: MaskingRule[];
  unlisted: (typeof UNLISTED)[number];
  /** 32 bytes as base64. */
  key: string;
}

/** Columns that an audit event names of each kind of change. The policy itself has all of them. */
const AUDITED_MAX = 100;

/** What differs between two versions, without the arguments of the rules: a constant may be anything. */
function differenceOf(before: readonly MaskingRule[], after: readonly MaskingRule[]) {
  const ofColumns = (rules: readonly MaskingRule[]) =>
    new Map(rules.map((rule) => [columnOf(rule), JSON.stringify(rule)]));
  const old = ofColumns(before);
  const current = ofColumns(after);
  const names = (rules: Map<string, string>, isNamed: (column: string) => boolean) =>
    [...rules.keys()].filter(isNamed).slice(0, AUDITED_MAX);
  return {
    added: names(current, (column) => !old.has(column)),
    removed: names(old, (column) => !current.has(column)),
    changed: names(current, (column) => old.has(column) && old.get(column) !== current.get(column)),
  };
}

/** A concurrent change is overwritten, unless the client has said what it has read. */
const TRIES = 3;

/**
 * Stores the policy as a new version and audits the change, in one batch. The same policy again makes no new
 * version.
 * @returns the current version, or NOT_FOUND, PROJECT_NOT_ACTIVE, MASKING_CHANGED
 */
export async function changeMasking(
  db: Database,
  keys: readonly SecretKey[],
  change: MaskingChange,
  now: Date,
): Promise<Result<PolicyRow | undefined, Failure>> {
  const { projectId, rules, unlisted, ifMatch, actor } = change;
  for (let tries = 1; ; tries += 1) {
    const [present] = await currentPolicy(db, projectId);
    const version = present?.version ?? 0;
    if (ifMatch !== undefined && !isMatch(ifMatch, version)) return fail({ code: 'MASKING_CHANGED' });
    const before = toMaskingResponse(present);
    const isSame = before.unlisted === unlisted && JSON.stringify(before.rules) === JSON.stringify(rules);
    if (present && isSame) return ok(present);
    const row: PolicyRow = {
      id: crypto.randomUUID(),
      projectId,
      version: version + 1,
      rules,
      unlisted,
      createdBy: actor.userId,
      createdAt: now,
    };
    const metadata = { version: row.version, unlisted, ...differenceOf(before.rules, rules) };
    const event = auditEvent('masking.changed', actor, { projectId, metadata }, now);
    const key = version === 0 ? await newKey(keys, projectId, now) : null;
    const ofProject = eq(maskingPolicies.projectId, projectId);
    const isNewest = sql`coalesce((select max(version) from ${maskingPolicies} where ${ofProject}), 0) = ${version}`;
    const written = await guardedWrite(db, {
      decides: [maskingPolicies, row],
      require: [...inActiveProject(projectId, actor.tenantId), [isNewest, 'MASKING_CHANGED']],
      rest: (isWritten) => [
        insertIf(db, auditEvents, event, isWritten),
        ...(key ? [insertIf(db, maskingKeys, key, isWritten)] : []),
      ],
    });
    if (written.ok) return ok(row);
    if (written.failure.code !== 'MASKING_CHANGED' || ifMatch !== undefined || tries === TRIES)
      return written;
  }
}

export interface MaskingChange {
  projectId: string;
  rules: MaskingRule[];
  unlisted: (typeof UNLISTED)[number];
  /** The header `If-Match`; undefined: whatever the present version is. */
  ifMatch: string | undefined;
  actor: Actor;
}
