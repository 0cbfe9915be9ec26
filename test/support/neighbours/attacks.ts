import type { Attack } from './attack.ts';
import { droppedBranches } from './attacks/branches.ts';
import {
  directConnections,
  manyProjects,
  pooledConnections,
  silentSockets,
  stalledLogins,
  wrongPasswords,
} from './attacks/connections.ts';
import {
  failedStatements,
  fullVolume,
  hugeRows,
  notifications,
  serverLog,
  temporaryFiles,
  writeAheadLog,
} from './attacks/floods.ts';
import { advisoryLocks, tableLocks } from './attacks/locks.ts';
import { slowViews } from './attacks/rows.ts';
import { largeReplies } from './attacks/sql.ts';
import {
  abandonedStatements,
  fewInodes,
  manyTables,
  memory,
  multixactMembers,
  oldTransaction,
  schemaChanges,
  sleepingAutovacuum,
  transactionIds,
} from './attacks/work.ts';

/**
 * Attacks that run while a victim is measured, by name. Those without load are tests of `rights.e2e.test.ts`.
 */
export const ATTACKS = {
  'advisory locks': advisoryLocks,
  'locks on tables': tableLocks,
  'server log': serverLog,
  'failed statements': failedStatements,
  'temporary files': temporaryFiles,
  notifications,
  'write-ahead log': writeAheadLog,
  'full volume': fullVolume,
  'direct connections': directConnections,
  'pooled connections': pooledConnections,
  'silent sockets': silentSockets,
  memory,
  'transaction ids': transactionIds,
  'old transaction': oldTransaction,
  'abandoned statements': abandonedStatements,
  'wrong passwords': wrongPasswords,
  'stalled logins': stalledLogins,
  'slow views': slowViews,
  'large replies': largeReplies,
  'many projects': manyProjects,
  'sleeping autovacuum': sleepingAutovacuum,
  'multixact members': multixactMembers,
  'many tables': manyTables,
  'few inodes': fewInodes,
  'huge rows': hugeRows,
  'schema changes': schemaChanges,
  'dropped branches': droppedBranches,
} satisfies Record<string, Attack>;

export type AttackName = keyof typeof ATTACKS;
