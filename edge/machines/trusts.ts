import { and, eq, sql } from 'drizzle-orm';
import { z } from 'zod';
import type { Failure } from '../../shared/failures.ts';
import { fail, type Result } from '../../shared/result.ts';
import { impossibleClaim } from '../../shared/trusted-services.ts';
import { auditEvent } from '../audit/audit-event.ts';
import type { Actor } from '../database/column-types.ts';
import { isOfTenant } from '../database/conditions.ts';
import { type Database, insertIf, isThere } from '../database/database.ts';
import { guardedWrite } from '../database/guarded-write.ts';
import { type TrustRow, trusts } from '../database/people-schema.ts';
import { auditEvents, projects } from '../database/schema.ts';
import { networkProblem } from '../destination.ts';
import { type KeyUse, writeUnderKey } from '../idempotency/idempotency-key.ts';
import { BranchPattern } from '../tenancy/branch-pattern.ts';
import { MachineRole } from './api-keys.ts';

const CLAIMS_MAX = 16;

const Claims = z
  .record(
    z.string().regex(/^[A-Za-z0-9][\w./:-]{0,99}$/, 'not the name of a claim'),
    z
      .string()
      .max(256)
      .regex(/^[^*]+\*?$/, 'expected a value; only its last character may be *, after at least one other'),
  )
  .refine((claims) => Object.keys(claims).length > 0, 'name at least one claim')
  .refine((claims) => Object.keys(claims).length <= CLAIMS_MAX, `at most ${CLAIMS_MAX} claims`)
  .meta({
    description:
      'Claims that an ID token must have, all of them strings. A value ending in `*` stands for every value with that beginning.',
    example: { repository: 'acme/shop', ref: 'refs/pull/*' },
  });

const TRUST_FIELDS = {
  issuer: z.string().min(1).max(512).meta({
    description: 'The `iss` of its ID tokens, an https URL.',
    example: 'https://token.actions.githubusercontent.com',
  }),
  audience: z.string().min(1).max(256).meta({ example: 'https://branchgate.example.com' }),
  claims: Claims,
  role: MachineRole,
};

export const NewTrust = z
  .strictObject({ ...TRUST_FIELDS, branch_pattern: BranchPattern.nullable().default(null) })
  .superRefine(({ issuer, claims }, context) => {
    const problem = impossibleClaim(issuer, claims);
    if (problem)
      context.addIssue({ code: 'custom', path: ['claims', problem.claim], message: problem.message });
  })
  .meta({
    example: {
      issuer: 'https://token.actions.githubusercontent.com',
      audience: 'https://branchgate.example.com',
      claims: { repository: 'acme/shop', ref: 'refs/pull/*' },
      role: 'operator',
      branch_pattern: 'pr-*',
    },
  });

export const Trust = z
  .strictObject({
    id: z.uuid(),
    project_id: z.uuid(),
    ...TRUST_FIELDS,
    branch_pattern: BranchPattern.nullable().meta({
      description: 'Its workloads can use only branches whose name matches. Null: every branch.',
      example: 'pr-*',
    }),
    last_used_at: z.iso
      .datetime()
      .nullable()
      .meta({ description: 'When the last token was issued, or used, to a minute. Null: never.' }),
    created_by: z.uuid().meta({ description: 'The user in whose name its workloads act.' }),
    created_at: z.iso.datetime(),
  })
  .meta({ id: 'Trust' });

export const toTrustResponse = (row: TrustRow): z.output<typeof Trust> => ({
  id: row.id,
  project_id: row.projectId,
  issuer: row.issuer,
  audience: row.audience,
  claims: row.claims,
  role: row.role,
  branch_pattern: row.branchPattern,
  last_used_at: row.lastUsedAt?.toISOString() ?? null,
  created_by: row.createdBy,
  created_at: row.createdAt.toISOString(),
});

const TRUSTS_MAX = 20;

const about = ({ id, projectId, issuer, audience, claims, role, branchPattern }: TrustRow) => ({
  projectId,
  metadata: { trust_id: id, issuer, audience, claims, role, branch_pattern: branchPattern },
});

/** Stores a trust and audits it, in one batch, with the response for a repeated request with the same key. */
export async function insertTrust(
  db: Database,
  row: TrustRow,
  actor: Actor,
  keyUse: KeyUse | null,
): Promise<Result<unknown, Failure>> {
  const { id, projectId } = row;
  const count = sql`(select count(*) from ${trusts} where project_id = ${projectId})`;
  const event = auditEvent('trust.created', actor, about(row), row.createdAt);
  const response = { status: 201, body: toTrustResponse(row) };
  return writeUnderKey(
    db,
    { use: keyUse, subjectId: id, now: row.createdAt, response },
    {
      decides: [trusts, row],
      require: [
        [isOfTenant(projects, projectId, actor.tenantId), 'NOT_FOUND'],
        [sql`${count} < ${TRUSTS_MAX}`, { code: 'TRUST_LIMIT_REACHED', fields: { limit: TRUSTS_MAX } }],
      ],
      rest: (isWritten) => [insertIf(db, auditEvents, event, isWritten)],
    },
  );
}

/** Deletes a trust and audits it, in one batch. */
export async function deleteTrust(
  db: Database,
  projectId: string,
  trustId: string,
  actor: Actor,
  now: Date,
): Promise<Result<unknown, Failure>> {
  const theTrust = and(
    eq(trusts.id, trustId),
    eq(trusts.projectId, projectId),
    isOfTenant(projects, projectId, actor.tenantId),
  );
  const [row] = await db.select().from(trusts).where(theTrust);
  if (!row) return fail({ code: 'NOT_FOUND' });
  const event = auditEvent('trust.deleted', actor, about(row), now);
  return guardedWrite(db, {
    decides: [auditEvents, event],
    require: [[isThere(trusts, theTrust), 'NOT_FOUND']],
    rest: (isWritten) => [db.delete(trusts).where(and(theTrust, isWritten))],
  });
}

/**
 * What is wrong with the address of an issuer or of its keys; null if nothing is.
 * @param isLocal loopback addresses are allowed too, also over plain HTTP
 */
export function issuerAddressProblem(address: string, isLocal: boolean): string | null {
  if (!URL.canParse(address)) return 'not a URL';
  const url = new URL(address);
  const { username, password, search, hash } = url;
  if (username || password || search || hash) return 'must have no user, query or fragment';
  return networkProblem(url, isLocal);
}
