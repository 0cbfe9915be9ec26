import { and, eq, isNull, or } from 'drizzle-orm';
import { isInNetwork, isPlainAddress } from '../../shared/cidr.ts';
import { ACCESS_OF_STATE } from '../../shared/project/storage-quota.ts';
import { networkLists, withRanges } from '../access/network-rule.ts';
import { isSameText } from '../crypto/encoding.ts';
import { makePassword, openPassword, sealPassword } from '../crypto/scram.ts';
import type { Sealed, SecretKey } from '../crypto/seal.ts';
import { isOpenJob } from '../database/conditions.ts';
import { type Database, isThere } from '../database/database.ts';
import { moves } from '../database/move-schema.ts';
import { branchCredentials, jobs, networkRules, projectBranches, projects } from '../database/schema.ts';
import { type ConnectionString, NOBODY } from './connection-string.ts';

/** The branch of a URL as the records have it. */
export interface SqlTarget {
  projectId: string;
  tenantId: string;
  hostId: string;
  /** Revision of the access that was read. */
  revision: number;
  /** The present password of the login. */
  password: string;
  /** The project changes its host, and has no clients. */
  isMoving: boolean;
  /** A network rule admits the client's address. */
  isAdmitted: boolean;
}

const isUnderWay = isThere(jobs, and(eq(jobs.id, moves.jobId), isOpenJob));
let sealedForNobody: Promise<Sealed> | null = null;

/** Takes as long as the password of a login that exists. */
const passwordOfNobody = (keys: readonly SecretKey[]): Promise<string> => {
  sealedForNobody ??= sealPassword(keys, NOBODY, 'read_only', makePassword());
  return sealedForNobody.then((sealed) => openPassword(keys, NOBODY, 'read_only', sealed));
};

/**
 * Reads what decides about a client from the primary of D1, in one batch, and compares the password. An unknown login takes
 * the same reads and the same work.
 * @param address of the client; null: not known
 * @param checksPassword false: a token decides instead
 * @returns null for a login that does not exist or is closed, and for a wrong password
 */
export async function readTarget(
  db: Database,
  keys: readonly SecretKey[],
  { branchId, role, database, password: given }: ConnectionString,
  { address, checksPassword }: { address: string | null; checksPassword: boolean },
): Promise<SqlTarget | null> {
  const projectOf = db
    .select({ id: projectBranches.projectId })
    .from(projectBranches)
    .where(eq(projectBranches.id, branchId));
  const [branches, ofProject, credentials, rules, lists, fences] = await db.batch([
    db.select().from(projectBranches).where(eq(projectBranches.id, branchId)),
    db.select().from(projects).where(eq(projects.id, projectOf)),
    db
      .select()
      .from(branchCredentials)
      .where(and(eq(branchCredentials.branchId, branchId), eq(branchCredentials.role, role))),
    db
      .select({ cidr: networkRules.cidr })
      .from(networkRules)
      .where(
        and(
          eq(networkRules.projectId, projectOf),
          or(isNull(networkRules.branchId), eq(networkRules.branchId, branchId)),
        ),
      ),
    networkLists(db),
    db
      .select({ phase: moves.phase })
      .from(moves)
      .where(
        and(
          eq(moves.projectId, projectOf),
          or(eq(moves.phase, 'fenced'), and(eq(moves.phase, 'moved'), isUnderWay)),
        ),
      ),
  ]);
  const branch = branches.find(
    ({ status, hold, databaseName }) => status === 'active' && hold !== 'import' && databaseName === database,
  );
  const project = ofProject.find(
    ({ status, storageState }) => status === 'active' && ACCESS_OF_STATE[storageState] !== 'closed',
  );
  const sealed = branch && project && credentials.find((credential) => credential.branchId === branchId);
  const expected = sealed
    ? await openPassword(keys, branchId, role, { keyId: sealed.keyId, sealed: sealed.sealedPassword })
    : await passwordOfNobody(keys);
  const isSame = await isSameText(given, expected);
  if (!project || !sealed || (checksPassword && !isSame)) return null;
  return {
    projectId: project.id,
    tenantId: project.tenantId,
    hostId: project.hostId,
    revision: project.accessRevision,
    password: expected,
    // The other host admits nobody before it has applied the access.
    isMoving: fences.some(
      ({ phase }) => phase === 'fenced' || project.accessApplied < project.accessRevision,
    ),
    isAdmitted:
      address !== null &&
      isPlainAddress(address) &&
      withRanges(rules, lists).some(({ cidr }) => isInNetwork(address, cidr)),
  };
}
