import { z } from 'zod';
import { DatabaseSettings } from '../branch/database-settings.ts';
import { BRANCH_ROLES } from '../branch/login.ts';
import { SPARES_MAX } from '../branch/snapshot.ts';
import { readCidr } from '../cidr.ts';
import { BRANCHES_MAX, NETWORK_RULES_MAX } from '../limits.ts';
import { DURABILITIES } from './durability.ts';

const Id = z.uuid();

/** Of the identity provider, whose tokens bound it. Characters. */
const TENANT_MAX = 4_096;

/** SCRAM-SHA-256 verifier in PostgreSQL's format; the host never stores a password. */
export const Verifier = z
  .string()
  .max(512)
  .regex(/^SCRAM-SHA-256\$\d{4,7}:[A-Za-z0-9+/=]+\$[A-Za-z0-9+/=]+:[A-Za-z0-9+/=]+$/);
/** A network in the canonical form of `readCidr`. */
const Cidr = z.string().refine((text) => {
  const reading = readCidr(text);
  return reading.ok && reading.cidr === text;
}, 'not a network in canonical form');

const NetworkRule = z.strictObject({
  /** The branch it applies to; `null`: every branch of the project. */
  branch_id: Id.nullable(),
  cidr: Cidr,
});

/**
 * The access to all databases of one project. It is always sent whole, and an older revision never overwrites
 * a newer one.
 */
export const Access = z.strictObject({
  revision: z.int().nonnegative(),
  /** The tenant that the project belongs to, whose projects the host bounds together; null: not known. */
  tenant: z.string().min(1).max(TENANT_MAX).nullable().default(null),
  /** Networks that may connect to the ports, and use SQL over HTTP. */
  rules: z.array(NetworkRule).max(NETWORK_RULES_MAX),
  /** Networks that may use SQL over HTTP alone. */
  sql_rules: z.array(NetworkRule).max(NETWORK_RULES_MAX).default([]),
  /** The storage quota is exceeded: only owner logins may write (specification 3.2). */
  write_blocked: z.boolean().default(false),
  /** Expired branches, whose logins are closed. They do not count against the project's limit. */
  closed: z.array(Id).max(BRANCHES_MAX).default([]),
  /** Connection attempts a minute of the branches with another limit than the default of the host. */
  connection_attempts: z.record(Id, z.int().positive()).default({}),
  /** Settings of the databases of branches that have some. */
  settings: z.record(Id, DatabaseSettings).default({}),
  /** Spares of one snapshot, of the whole project (null: automatic) and of the snapshots with another number. */
  spares: z
    .strictObject({
      of_project: z.int().min(0).max(SPARES_MAX).nullable(),
      of_snapshots: z.record(Id, z.int().min(0).max(SPARES_MAX)),
    })
    .default({ of_project: null, of_snapshots: {} }),
  /** When commits to its databases are confirmed. */
  durability: z.enum(DURABILITIES).default('async'),
  /** Passwords newer than the last applied revision, by branch. A revision contains them only once. */
  verifiers: z.record(Id, z.partialRecord(z.enum(BRANCH_ROLES), Verifier)).default({}),
});
export type Access = z.output<typeof Access>;
