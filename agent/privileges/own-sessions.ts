import { inTransaction, type Session } from '../postgres/connect.ts';

/** Owns the functions below that run with its rights, which no login has. Made by the agent's tables. */
const SESSIONS_ROLE = 'branchgate_sessions';

/** Whether a database lacks the functions, or has those of a release before; it needs no rights. */
export const LACKS_OWN_SESSIONS = `
  SELECT NOT EXISTS (
    SELECT FROM pg_catalog.pg_proc
    WHERE proname OPERATOR(pg_catalog.=) 'branchgate_own_login'
      AND pronamespace OPERATOR(pg_catalog.=) 'pg_catalog'::pg_catalog.regnamespace
  ) AS lacking`;

const IN_CATALOG = 'SET LOCAL search_path = pg_catalog, pg_temp; SET LOCAL allow_system_table_mods = on';

/**
 * The login whose sessions are one's own. In autovacuum `SESSION_USER` is the superuser that made the cluster, whose
 * statements no code of a tenant may see: it has no sessions of its own there.
 */
const LOGIN = `
  CREATE FUNCTION pg_catalog.branchgate_own_login() RETURNS oid LANGUAGE sql STABLE
    RETURN (SELECT oid FROM pg_roles WHERE rolname = SESSION_USER AND rolname ~ '^u_[0-9a-f]{32}_(owner|rw|ro|query)$')`;

const IS_OWN = `
  CREATE OR REPLACE FUNCTION pg_catalog.branchgate_is_own(pid integer) RETURNS boolean LANGUAGE sql VOLATILE
  BEGIN ATOMIC
    SELECT pg_stat_clear_snapshot();
    SELECT EXISTS (SELECT FROM pg_stat_get_activity(pid) AS session WHERE usesysid = branchgate_own_login());
  END`;

/** Those of this version of PostgreSQL, without the argument. */
const COLUMNS = `columns text := regexp_replace(pg_get_function_arguments('pg_stat_get_activity'::regproc), '^[^,]*, ', '')`;

const OWN = `EXECUTE format($f$
      CREATE OR REPLACE FUNCTION pg_catalog.branchgate_own_sessions(%s) RETURNS SETOF record
        LANGUAGE sql STABLE SECURITY DEFINER PARALLEL RESTRICTED ROWS 10
      BEGIN ATOMIC
        SELECT session.* FROM pg_stat_get_activity(NULL) AS session WHERE session.usesysid = branchgate_own_login();
      END$f$, columns)`;

/**
 * Lets each login see, cancel and end its own sessions by PostgreSQL's usual names. PostgreSQL compares the
 * login of a session with the current role, which for the owner login is the group of its project. No grant
 * helps: the group of all branches would need the rights of each branch's login, which is its member.
 *
 * So PostgreSQL's functions get another name in the database, and new ones of the old name first compare the
 * login of the session with that of the caller, `SESSION_USER`. Only for one's own sessions they run with the
 * rights of a role that may signal any session. Everything else is decided by PostgreSQL's functions.
 *
 * A transaction reads the list of sessions once, and a process ID can belong to another tenant's session by
 * now, so the list is read again before a signal. The bodies are parsed here, not at the call, so no
 * `search_path` changes them. Clones inherit all of it.
 */
const OWN_SESSIONS = `
  ALTER FUNCTION pg_cancel_backend(integer) RENAME TO pg_cancel_backend_of_role;
  ALTER FUNCTION pg_terminate_backend(integer, bigint) RENAME TO pg_terminate_backend_of_role;
  ${IS_OWN};
  CREATE FUNCTION pg_catalog.branchgate_cancel_own(pid integer) RETURNS boolean
    LANGUAGE sql VOLATILE SECURITY DEFINER
    RETURN CASE WHEN branchgate_is_own(pid) THEN pg_cancel_backend_of_role(pid) ELSE false END;
  CREATE FUNCTION pg_catalog.branchgate_terminate_own(pid integer, timeout bigint) RETURNS boolean
    LANGUAGE sql VOLATILE SECURITY DEFINER
    RETURN CASE WHEN branchgate_is_own(pid) THEN pg_terminate_backend_of_role(pid, timeout) ELSE false END;
  CREATE FUNCTION pg_catalog.pg_cancel_backend(pid integer) RETURNS boolean LANGUAGE sql VOLATILE STRICT
    RETURN CASE WHEN branchgate_is_own(pid) THEN branchgate_cancel_own(pid) ELSE pg_cancel_backend_of_role(pid) END;
  CREATE FUNCTION pg_catalog.pg_terminate_backend(pid integer, timeout bigint DEFAULT 0) RETURNS boolean
    LANGUAGE sql VOLATILE STRICT
    RETURN CASE WHEN branchgate_is_own(pid) THEN branchgate_terminate_own(pid, timeout)
      ELSE pg_terminate_backend_of_role(pid, timeout) END;
  DO $do$
  DECLARE
    ${COLUMNS};
  BEGIN
    ${OWN};
    EXECUTE format($f$
      CREATE FUNCTION pg_catalog.branchgate_sessions(%s) RETURNS SETOF record
        LANGUAGE sql STABLE PARALLEL RESTRICTED ROWS 100
      BEGIN ATOMIC
        SELECT session.* FROM pg_stat_get_activity(NULL) AS session
        WHERE session.usesysid IS DISTINCT FROM branchgate_own_login()
        UNION ALL SELECT own.* FROM branchgate_own_sessions() AS own;
      END$f$, columns);
    EXECUTE 'CREATE OR REPLACE VIEW pg_catalog.pg_stat_activity AS ' || replace(
      pg_get_viewdef('pg_stat_activity'::regclass), 'pg_stat_get_activity(NULL::integer)', 'branchgate_sessions()');
  END $do$;
  ALTER FUNCTION branchgate_cancel_own(integer) OWNER TO ${SESSIONS_ROLE};
  ALTER FUNCTION branchgate_terminate_own(integer, bigint) OWNER TO ${SESSIONS_ROLE};
  ALTER FUNCTION branchgate_own_sessions() OWNER TO ${SESSIONS_ROLE}`;

/** Those of a release before compare with any role. Their view of all sessions shows no more than PostgreSQL's. */
const ONLY_LOGINS = `
  ${IS_OWN};
  DO $do$
  DECLARE
    ${COLUMNS};
  BEGIN
    ${OWN};
  END $do$`;

const HAS_FUNCTIONS = `
  SELECT EXISTS (
    SELECT FROM pg_catalog.pg_proc
    WHERE proname OPERATOR(pg_catalog.=) 'branchgate_sessions'
      AND pronamespace OPERATOR(pg_catalog.=) 'pg_catalog'::pg_catalog.regnamespace
  ) AS present`;

/** A tenant's session that reads the view holds it for the length of its transaction. */
const LIMITS = "SET LOCAL lock_timeout = '500ms'; SET LOCAL transaction_timeout = '5s'";

/**
 * Makes the functions in a database that lacks them: in a new `main`, and once in each branch of a release
 * before. This is the only statement that the superuser runs in a database with a tenant's content. It calls
 * nothing that a tenant can make: every name is looked up in `pg_catalog`, which no login may change, and
 * only a superuser can make an event trigger.
 */
export const makeOwnSessions = (session: Session): Promise<void> =>
  inTransaction(session, async () => {
    await session.query(LIMITS);
    await session.query("SELECT pg_catalog.pg_advisory_xact_lock(hashtextextended('own-sessions', 0))");
    const { rows } = await session.query<{ lacking: boolean }>(LACKS_OWN_SESSIONS);
    if (!rows[0]?.lacking) return;
    const { rows: found } = await session.query<{ present: boolean }>(HAS_FUNCTIONS);
    await session.query(`${IN_CATALOG}; ${LOGIN}; ${found[0]?.present ? ONLY_LOGINS : OWN_SESSIONS}`);
  });
