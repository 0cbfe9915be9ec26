import { z } from 'zod';
import { BranchPattern } from '../branches/branch-pattern.ts';
import type { trusts } from '../database/machine-schema.ts';
import { MachineRole } from './api-key-resource.ts';

export type TrustRow = typeof trusts.$inferSelect;

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
