/**
 * Files of all databases of a project together. A table has one to four, and the host reads and flushes each of
 * them at checkpoints and clones, which delays other tenants.
 */
export const PROJECT_FILES_MAX = 100_000;

/** Network rules of one project. All of them travel to the host in one message, which has a maximum size. */
export const NETWORK_RULES_MAX = 2000;

/** Rows of one page, and ids of one deletion (specification 8). */
export const ROWS_MAX = 50;

/** Conditions and columns of the order of one page. */
export const FILTERS_MAX = 16;
export const ORDERS_MAX = 8;

/** Statements of one text that a client runs. */
export const QUERY_STATEMENTS_MAX = 100;

/** Statements of one transaction of SQL over HTTP. */
export const SQL_BATCH_MAX = 1000;

/** Parameters of one statement. */
export const QUERY_PARAMETERS_MAX = 1000;

/** UTF-8 bytes of one cell in a response; a longer value is cut. */
export const CELL_BYTES_MAX = 65_536;

/** Branches of one project with a database: those that count against its limit, and the expired ones. */
export const BRANCHES_MAX = 500;
/** Days for which the database of a deleted branch can be kept. */
export const UNDELETE_DAYS_MAX = 30;

/** Branches of one batch. */
export const BATCH_MAX = 32;

/** Networks that a creation may admit to its branch. */
export const ALLOWED_NETWORKS_MAX = 16;

/** Branches of one host, also those that a move copies, and projects of one tenant there, that follow a database elsewhere. */
export const FOLLOWED_ON_HOST_MAX = 12;
export const FOLLOWED_OF_TENANT_MAX = 4;

/** Tables that are copied concurrently from a source elsewhere. */
export const COPY_JOBS = { default: 2, max: 8 };
