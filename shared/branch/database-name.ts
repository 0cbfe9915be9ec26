import { BRANCH_NAME_LENGTH } from './branch-name.ts';

/** PostgreSQL's limit on an identifier, in bytes (spec section 8); all our names are ASCII. */
export const DATABASE_NAME_MAX = 63;

const PREFIX = 'db_';
const BRANCH_INFIX = '_br_';

/** Database of a project's `main` branch: `db_<app_key>_<env>`. */
export const mainDatabaseName = (appKey: string, env: string) => `${PREFIX}${appKey}_${env}`;

/** Database of any other branch: `db_<app_key>_<env>_br_<slug>` (spec 2.4). May be longer than PostgreSQL takes. */
export const branchDatabaseName = (appKey: string, env: string, branchName: string) =>
  `${mainDatabaseName(appKey, env)}${BRANCH_INFIX}${branchName}`;

/** Longest branch name whose database name still fits, in a project with this app key and environment. */
export const maxSlugLength = (appKey: string, env: string) =>
  Math.max(
    0,
    Math.min(BRANCH_NAME_LENGTH.max, DATABASE_NAME_MAX - branchDatabaseName(appKey, env, '').length),
  );

/**
 * Name part of the environment variables in the credentials record (spec 2.5): the database name
 * without its prefix, upper-cased, hyphens turned to underscores.
 */
export const environmentName = (database: string) =>
  database.slice(PREFIX.length).toUpperCase().replaceAll('-', '_');

/** Database under construction: invisible to tenants until it is renamed. */
export const buildDatabaseName = (jobId: string) => `bgjob_${jobId.replaceAll('-', '')}`;

/** A name this service may have given to a database; anything else never reaches SQL or a rules file. */
export const MANAGED_DATABASE = /^db_[a-z0-9_-]{1,60}$/;
