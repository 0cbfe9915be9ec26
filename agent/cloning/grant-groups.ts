import { groupName } from '../../shared/branch/login.ts';
import { identifier, inDatabase } from '../postgres/connect.ts';
import { grantByDefault, OPENED_GROUPS } from '../privileges/default-privileges.ts';
import type { AgentSettings } from '../settings.ts';

/** Functions that write large objects. PUBLIC may run them by default, so read-only and write-blocked logins could. */
const LARGE_OBJECT_WRITERS = [
  'lo_creat(integer)',
  'lo_create(oid)',
  'lo_from_bytea(oid, bytea)',
  'lo_put(oid, bigint, bytea)',
  'lowrite(integer, bytea)',
  'lo_truncate(integer, integer)',
  'lo_truncate64(integer, bigint)',
]
  .map((name) => `pg_catalog.${name}`)
  .join(', ');

/** Functions that write any number of bytes to the log of changes (WAL), which PUBLIC may run by default. */
const WAL_WRITERS = ['text', 'bytea']
  .map((message) => `pg_catalog.pg_logical_emit_message(boolean, text, ${message}, boolean)`)
  .join(', ');

/**
 * Grants a new `main` to its project's groups. Default privileges open what the owner creates to the other groups,
 * and every clone inherits them without a statement per object. No tenant has run code in this database yet; the
 * superuser runs nothing in any other.
 */
export const grantGroups = (settings: AgentSettings, database: string, projectId: string) => {
  const owner = identifier(groupName(projectId, 'owner'));
  const readWrite = identifier(groupName(projectId, 'read_write'));
  const readOnly = identifier(groupName(projectId, 'read_only'));
  return inDatabase(settings, database, (session) =>
    session.query(
      `ALTER SCHEMA public OWNER TO ${owner};
       REVOKE ALL ON SCHEMA public FROM PUBLIC;
       GRANT USAGE ON SCHEMA public TO ${readWrite}, ${readOnly};
       REVOKE EXECUTE ON FUNCTION ${LARGE_OBJECT_WRITERS} FROM PUBLIC;
       GRANT EXECUTE ON FUNCTION ${LARGE_OBJECT_WRITERS} TO ${owner}, ${readWrite};
       REVOKE EXECUTE ON FUNCTION ${WAL_WRITERS} FROM PUBLIC;
       ${OPENED_GROUPS.map((group) => grantByDefault(projectId, group)).join('; ')}`,
    ),
  );
};
