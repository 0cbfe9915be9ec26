import { BRANCH_NAME_LENGTH } from './branch-name.ts';

/** PostgreSQL's limit on an identifier, in bytes (specification 8); all names here are ASCII. */
export const DATABASE_NAME_MAX = 63;

const PREFIX = 'db_';
const BRANCH_INFIX = '_br_';

/** Database of a project's `main` branch: `db_<app_key>_<env>`. */
export const mainDatabaseName = (appKey: string, env: string) => `${PREFIX}${appKey}_${env}`;

/**
 * Database of any other branch: `db_<app_key>_<env>_br_<slug>` (specification 2.4). May exceed PostgreSQL's
 * limit.
 */
export const branchDatabaseName = (appKey: string, env: string, branchName: string) =>
  `${mainDatabaseName(appKey, env)}${BRANCH_INFIX}${branchName}`;

/**
 * The `main` database of the project that a database belongs to; neither app key nor environment contains the
 * infix.
 */
export const projectDatabaseName = (database: string) => database.split(BRANCH_INFIX, 1)[0] ?? database;

/** Condition of PostgreSQL: `column` has the name of a `main` database. */
export const isMainDatabase = (column: string) => `position('${BRANCH_INFIX}' IN ${column}) = 0`;

/**
 * Length of the longest branch name whose database name fits, in a project with this app key and environment.
 */
export const maxSlugLength = (appKey: string, env: string) =>
  Math.max(
    0,
    Math.min(BRANCH_NAME_LENGTH.max, DATABASE_NAME_MAX - branchDatabaseName(appKey, env, '').length),
  );

/**
 * Name part of the environment variables in the credentials record (specification 2.5): the database name
 * without its prefix, in upper case, with underscores for hyphens.
 */
export const environmentName = (database: string) =>
  database.slice(PREFIX.length).toUpperCase().replaceAll('-', '_');

/** Database under construction, which tenants cannot reach until it is renamed. */
export const buildDatabaseName = (jobId: string) => `bgjob_${jobId.replaceAll('-', '')}`;

/** The form of database names that this service creates. No other name reaches SQL or a rule file. */
export const MANAGED_DATABASE = /^db_[a-z0-9_-]{1,60}$/;

/** The closed database of a snapshot; tenants cannot reach it. */
export const snapshotDatabaseName = (snapshotId: string) => `bgsnap_${snapshotId.replaceAll('-', '')}`;

export const SNAPSHOT_DATABASE = /^bgsnap_[0-9a-f]{32}$/;

/** The id of the snapshot that has this database. */
export const snapshotIdOf = (database: string) =>
  database.replace(/^bgsnap_(.{8})(.{4})(.{4})(.{4})(.{12})$/, '$1-$2-$3-$4-$5');
