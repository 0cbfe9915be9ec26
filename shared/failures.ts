interface FailureDefinition {
  /** HTTP status. */
  status: number;
  /** Public message: what is wrong, then what the client can do about it. */
  message: string;
  /** Seconds to wait before the next attempt, if the failure may pass without anybody's action. */
  retryAfterSeconds?: number;
  /** A code that earlier releases sent in its place. Clients should treat both alike. */
  formerCode?: string;
}

/** For failures that usually pass within seconds. */
const SOON = 5;
/** For failures of a creation that was already retried for 15 minutes. */
const LATER = 60;

/**
 * Every failure that the API can report to a client.
 * The internal reason is logged under the request ID and is never part of the response.
 */
export const FAILURES = {
  BAD_REQUEST: { status: 400, message: 'The request body is not valid JSON.' },
  // The endpoints of OAuth have the codes of RFC 6749, RFC 7591, RFC 8693 and RFC 8707.
  invalid_request: {
    status: 400,
    message:
      'The token request is malformed, or no trust of the project accepts the subject token. Check the issuer, audience and claims of the trust.',
  },
  invalid_target: {
    status: 400,
    message: 'The resource is not the URL of a project. Send {base_url}/api/v1/projects/{project_id}.',
  },
  unsupported_grant_type: {
    status: 400,
    message:
      'The grant type is not supported. Send urn:ietf:params:oauth:grant-type:token-exchange as grant_type.',
  },
  invalid_client: {
    status: 400,
    message: 'The client is not known, or its metadata document cannot be used. See error_description.',
  },
  invalid_grant: {
    status: 400,
    message: 'The code or the token is invalid, was used before or has expired. Sign in again.',
  },
  invalid_scope: { status: 400, message: 'The scope is none of those that are possible here.' },
  unsupported_response_type: { status: 400, message: 'The response type is not supported. Send code.' },
  invalid_redirect_uri: {
    status: 400,
    message:
      'A redirect address is not allowed. Use https, or http on the loopback address, in normal form and without a fragment.',
  },
  invalid_client_metadata: {
    status: 400,
    message: 'The metadata of the client is not valid. See error_description.',
  },
  UNAUTHENTICATED: { status: 401, message: 'A valid bearer token is required.' },
  SIGN_IN_FAILED: { status: 400, message: 'The sign-in was not completed. Start it again.' },
  CREDENTIALS_WRONG: { status: 401, message: 'The e-mail address or the password is wrong.' },
  CODE_WRONG: { status: 401, message: 'The code is invalid, already used or expired.' },
  REFRESH_TOKEN_WRONG: {
    status: 401,
    message: 'The refresh token is invalid, already used or expired. Sign in again.',
  },
  SECOND_FACTOR_REQUIRED: {
    status: 403,
    message: 'The second factor cannot be skipped. Complete it to sign in.',
  },
  SECOND_FACTOR_ENROLLED: { status: 403, message: 'A second factor is already enrolled.' },
  FORBIDDEN: { status: 403, message: 'Your role or scope does not allow this operation.' },
  CROSS_ORIGIN_REQUEST: {
    status: 403,
    message: 'Only pages of this origin may send this request. Open the page at the address of the gateway.',
  },
  PASSWORD_WRONG: { status: 403, message: 'The current password is wrong.' },
  SIGN_UP_CLOSED: {
    status: 403,
    message:
      'This gateway does not accept sign-ups of this address. Ask an owner of your team, or the operator, how to get access.',
  },
  SSO_REQUIRED: {
    status: 403,
    message:
      'Addresses of this domain sign in with the identity provider of their company. Use POST /api/v1/auth/methods to find it.',
  },
  SSO_ADDRESS_REFUSED: {
    status: 403,
    message:
      'The identity provider gave no verified e-mail address in a domain of your company. Ask an owner of your team which addresses it accepts.',
  },
  SSO_DISABLED: {
    status: 403,
    message: 'Your company has disabled your access. Ask the people who manage its identity provider.',
  },
  TENANT_REQUIRED: { status: 403, message: 'The token has no tenant (claim ctx.tenant_id).' },
  BRANCH_PROTECTED: {
    status: 403,
    message: 'The branch is protected. End its protection first; that of main never ends.',
  },
  NOT_FOUND: { status: 404, message: 'Not found.' },
  NO_IDENTITY_PROVIDER: {
    status: 404,
    message:
      'This gateway has no identity provider of its own. Sign in with your e-mail address and a password, a code, or the provider of your company.',
  },
  ROW_NOT_FOUND: { status: 404, message: 'The row was not found.' },
  BRANCH_EXISTS: {
    status: 409,
    message: 'The project already has a branch with this name. Choose another name.',
  },
  PROJECT_EXISTS: {
    status: 409,
    message: 'Your tenant already has a project with this app key and environment. Choose another app key.',
  },
  PROJECT_NOT_ACTIVE: { status: 409, message: 'The project is not active. Check its status.' },
  NETWORK_LIST_UNAVAILABLE: {
    status: 503,
    message:
      'The list of this network cannot be read at its source at the moment. Try again later, or add its networks themselves.',
    retryAfterSeconds: LATER,
  },
  RULE_EXISTS: { status: 409, message: 'The network rule already exists.' },
  TENANT_EXISTS: {
    status: 409,
    message: 'A tenant with this ID already exists and has members. Choose another ID.',
  },
  IDENTITY_PROVIDER_EXISTS: {
    status: 409,
    message: 'The tenant already has an identity provider with this issuer. Change that one.',
  },
  DOMAIN_NOT_VERIFIED: {
    status: 409,
    message:
      'The domain has no TXT record with the text in txt_record. Publish it, wait a few minutes, and try again.',
  },
  DOMAIN_TAKEN: {
    status: 409,
    message: 'The domain belongs to another identity provider. Ask the platform operator if it is yours.',
  },
  SSO_NOT_TRIED: {
    status: 409,
    message:
      'Nobody has signed in as you by an identity provider of the tenant yet. Do that once before you require it, so that you are not locked out.',
  },
  SSO_MISCONFIGURED: {
    status: 409,
    message:
      'The identity provider of your company is not set up correctly. Ask an owner of your team to test it.',
  },
  HOST_EXISTS: { status: 409, message: 'A host with this name is already enrolled. Choose another name.' },
  DNS_NOT_CONFIGURED: {
    status: 409,
    message:
      'The gateway cannot set DNS records. Set DNS_API_TOKEN and DNS_ZONE_ID, or give the host a certificate of yours.',
  },
  HOST_HAS_AUTHORITY: {
    status: 409,
    message:
      'The operator gave this host another authority. Give it a certificate of that authority, or remove the authority: branchgate host set <name> --ca none.',
  },
  HOST_NOT_EMPTY: {
    status: 409,
    message: 'There are projects on this host. Delete them first, or drain the host instead of removing it.',
  },
  HOST_NOT_PRIMARY: {
    status: 409,
    message: 'This host is a standby, or was one. Name the host that serves the projects.',
  },
  HOST_NOT_STANDBY: {
    status: 409,
    message: 'This host is no standby that could take the place of its primary. See its `members`.',
  },
  HOST_HAS_STANDBY: {
    status: 409,
    message: 'Another host is the standby of this host, or a former primary of it. Remove that one first.',
  },
  HOST_NOT_FENCED: {
    status: 409,
    message:
      'This former primary has not reported that its servers are stopped, so clients may still reach them. Start its agent and wait until it is linked, or switch the machine off for good and say so with `switched_off=true`.',
  },
  STANDBY_NOT_READY: {
    status: 409,
    message:
      'The standby is not linked, has no complete copy, or is still becoming the primary. Check its agent, then repeat the request.',
  },
  NO_STANDBY: {
    status: 409,
    message:
      'The database host of this project has no standby that could confirm commits. Contact the platform operator.',
  },
  PRIMARY_UNAVAILABLE: {
    status: 409,
    message:
      'The primary cannot be reached, so it cannot be closed first. If its machine is lost, repeat the request with its ID as `lost`.',
  },
  PRIMARY_LINKED: {
    status: 409,
    message:
      'The primary is connected. Repeat the request without `lost`, so that nothing is lost, or with `force` if the primary cannot be closed.',
  },
  MANAGED_BY_PROVIDER: {
    status: 409,
    message: 'The identity provider manages its users. Make this change at the identity provider.',
  },
  ACCOUNT_EXISTS: {
    status: 409,
    message:
      'This e-mail address already has an account, which belongs to another tenant. Ask for an invitation of another address.',
  },
  MEMBER_EXISTS: { status: 409, message: 'This e-mail address already belongs to a member of the tenant.' },
  INVITATION_EXISTS: {
    status: 409,
    message: 'This e-mail address already has an open invitation. Revoke it to send another one.',
  },
  LAST_OWNER: { status: 409, message: 'A tenant needs an owner. Make another member an owner first.' },
  SOURCE_BUSY: {
    status: 409,
    message:
      'A session on the source branch stayed in a transaction for too long. End the transaction, then try again.',
  },
  SOURCE_NOT_ACTIVE: { status: 409, message: 'The source branch is not active. Choose an active branch.' },
  BRANCH_NOT_ACTIVE: {
    status: 409,
    message: 'The branch is not active. Check its status; an expired branch can be extended.',
  },
  BRANCH_FOLLOWING: {
    status: 409,
    message:
      'main follows a database elsewhere, so it is read-only. Create a branch of it, or cut over or stop following first.',
  },
  PROJECT_MOVING: {
    status: 409,
    message: 'The project moves to another database host. Repeat the request when its job has ended.',
    retryAfterSeconds: LATER,
  },
  MOVE_FINISHING: {
    status: 409,
    message: 'The move is at its last step, which takes moments, so it cannot be cancelled any more.',
  },
  SNAPSHOTS_STAY: {
    status: 409,
    message:
      'The project has snapshots or deleted branches that can be restored, which do not move. Repeat with drop_snapshots to give them up.',
  },
  FOLLOW_STATE: {
    status: 409,
    message: 'The project is not in a state that allows this. Read what it follows, and see state.',
  },
  CHANGE_STATE: {
    status: 409,
    message: 'The change is not in a state that allows this. Read the change, and see state.',
  },
  CHANGE_STALE: {
    status: 409,
    message:
      'The schema of main is no longer the one that the change was planned with. Rehearse the change, which plans it again.',
  },
  CHANGE_OVER_BUDGET: {
    status: 409,
    message:
      'A statement held a strong lock for longer than budget_ms when it was rehearsed. See statement. Use the safer form that its findings name, raise budget_ms, or send accept_outage true.',
  },
  CHANGE_NOT_APPROVED: {
    status: 409,
    message:
      'The change lacks an approval of its present plan. Ask another member with full data to approve it.',
  },
  CHANGE_STOPPED: {
    status: 409,
    message: 'The change stopped before its end. Read the change: it says at which statement, and why.',
  },
  NO_SNAPSHOT: {
    status: 409,
    message: 'The branch has no snapshot. Take one first, or leave out from.',
  },
  BRANCH_NOT_LEASED: {
    status: 409,
    message:
      'The branch has no lease. Use a branch created with lease_seconds, or change its lifespan instead.',
  },
  WRITE_BLOCKED: {
    status: 409,
    message:
      'The project has used up its storage quota, so only owner logins can write. Delete data or raise the quota.',
  },
  DATABASES_CLOSED: {
    status: 409,
    message:
      'The project has exceeded twice its storage quota, so its databases accept no logins. Delete branches or raise the quota.',
  },
  CHANGES_CONFLICT: {
    status: 409,
    message:
      'Rows have other values than expected, or no longer exist. Nothing was changed. Compare `conflicts` and send the changes again.',
  },
  ROW_CHANGED: { status: 409, message: 'The cell no longer has the expected value. Read the row again.' },
  LOGIN_REFUSED: {
    status: 409,
    message:
      'PostgreSQL refuses the login of the branch; postgres_message says why. Settings that a login made for itself are removed within seconds: try again, or rotate the credentials.',
  },
  STORAGE_QUOTA_EXCEEDED: {
    status: 409,
    message:
      'The operation would exceed the storage quota of the project. Delete branches or data, or raise the quota.',
  },
  FILE_LIMIT_REACHED: {
    status: 409,
    message:
      'The project would have more files on the database host than it may have. Drop tables and indexes, or delete branches.',
  },
  DATABASE_NAME_HELD: {
    status: 409,
    message:
      'The database name is still in use on the database host. Try again later, or choose another name.',
    retryAfterSeconds: LATER,
  },
  IMPORT_FINISHING: {
    status: 409,
    message: 'The import has copied everything and ends in moments, so it cannot be cancelled any more.',
  },
  JOB_CANCELLED: { status: 409, message: 'The job was cancelled, and what it had made was removed.' },
  MASKING_INCOMPLETE: {
    status: 409,
    message:
      'The masking policy does not cover the branch, so nothing was made. Give the columns a rule, and repeat the request.',
  },
  IDEMPOTENCY_IN_FLIGHT: {
    status: 409,
    message: 'The first request with this Idempotency-Key is still running. Repeat the request later.',
  },
  MASKING_CHANGED: {
    status: 412,
    message: 'The masking policy has changed since you read it. Read it again, and repeat the change.',
  },
  PAYLOAD_TOO_LARGE: { status: 413, message: 'The request body is larger than 1 MiB.' },
  TIME_NOT_RECOVERABLE: {
    status: 422,
    message:
      'The branch cannot be recovered as of this time. Choose a time between `from` and `until`; if they are null, its database host keeps no past of it.',
  },
  VALIDATION_FAILED: { status: 422, message: 'The request has invalid values. See details.' },
  SOURCE_UNSUITABLE: {
    status: 422,
    message: 'The source cannot be used. See details for everything that is wrong.',
  },
  /** Sent with PostgreSQL's own message and `sqlstate` in its place. */
  STATEMENT_REFUSED: { status: 422, message: 'PostgreSQL rejected the statement.' },
  DATABASE_NAME_TOO_LONG: {
    status: 422,
    message: 'The derived database name would be longer than 63 characters. Choose a shorter name.',
  },
  QUOTA_ABOVE_SELF_SERVICE_CAP: {
    status: 422,
    message: 'The storage quota is above the cap of the project. Ask the platform operator to raise the cap.',
  },
  CONNECTION_ATTEMPTS_ABOVE_MAX: {
    status: 422,
    message:
      'The platform operator allows fewer connection attempts a minute. Send `max`, or ask the operator to raise CONNECTION_ATTEMPTS_MAX.',
  },
  IDEMPOTENCY_KEY_REUSED: {
    status: 422,
    message: 'This Idempotency-Key was already used with another request body. Use a new key.',
  },
  UPGRADE_REQUIRED: { status: 426, message: 'This path accepts WebSocket connections only.' },
  BRANCH_LIMIT_REACHED: {
    status: 429,
    message:
      'The project has reached its branch limit (branch_limit), which counts leased and expired branches too. Delete a branch, or ask the platform operator to raise the limit.',
  },
  SNAPSHOT_LIMIT_REACHED: {
    status: 429,
    message: 'The project has reached its limit of snapshots. Delete a snapshot first.',
  },
  CHANGE_LIMIT_REACHED: {
    status: 429,
    message: 'The project has reached its limit of open changes. Close one first.',
  },
  PROJECT_LIMIT_REACHED: {
    status: 429,
    message:
      'The tenant has reached its project limit. Delete a project, or ask the platform operator to raise the limit.',
  },
  TENANT_QUOTA_REACHED: {
    status: 429,
    message:
      "The storage quotas of the tenant's projects would exceed its limit in GiB. Lower a quota, delete a project, or ask the platform operator to raise the limit.",
  },
  RULE_LIMIT_REACHED: {
    status: 429,
    message: 'The project has reached its network rule limit. Delete a rule first.',
  },
  API_KEY_LIMIT_REACHED: {
    status: 429,
    message: 'The tenant has reached its limit of API keys. Delete a key first.',
  },
  OAUTH_GRANT_LIMIT_REACHED: {
    status: 429,
    message: 'You have signed in as many clients as you may. Sign one out first.',
  },
  OAUTH_CLIENT_LIMIT_REACHED: {
    status: 429,
    message:
      'The gateway holds as many registered clients as it may. Use a client with a metadata document, or try again tomorrow.',
  },
  TRUST_LIMIT_REACHED: {
    status: 429,
    message: 'The project has reached its limit of trusts. Delete a trust first.',
  },
  IDENTITY_PROVIDER_LIMIT_REACHED: {
    status: 429,
    message: 'The tenant has reached its limit of identity providers. Delete one first.',
  },
  STREAM_LIMIT_REACHED: {
    status: 429,
    message: 'The project or the tenant has reached its limit of open streams. Close a stream first.',
  },
  WEBHOOK_LIMIT_REACHED: {
    status: 429,
    message: 'The tenant has reached its webhook limit. Delete a webhook first.',
  },
  PROJECT_BUSY: {
    status: 429,
    message:
      'The project has as many operations of this kind under way as it may have. Try again when one has ended. If views or triggers make them slow, shorten those.',
    retryAfterSeconds: SOON,
  },
  RATE_LIMITED: { status: 429, message: 'Too many requests. Try again after retry_after seconds.' },
  INTERNAL: { status: 500, message: 'Internal error. Quote the request ID when you report it.' },
  DNS_UNAVAILABLE: {
    status: 503,
    message:
      'The DNS service did not set the record. Check that the name of the host is in the zone, and that the token may edit it.',
    retryAfterSeconds: LATER,
  },
  LIMITER_UNAVAILABLE: {
    status: 503,
    message: 'The gateway currently cannot count requests. Try again shortly.',
    retryAfterSeconds: SOON,
  },
  GATEWAY_BUSY: {
    status: 503,
    message: 'A part of the gateway is overloaded or restarts. Try again shortly.',
    retryAfterSeconds: SOON,
    formerCode: 'LIMITER_UNAVAILABLE',
  },
  IDP_UNAVAILABLE: {
    status: 503,
    message: 'The identity provider is currently unavailable. Try again shortly.',
    retryAfterSeconds: SOON,
  },
  DOMAIN_LOOKUP_FAILED: {
    status: 503,
    message: 'The domain could not be looked up. Try again shortly.',
    retryAfterSeconds: SOON,
  },
  MAIL_UNAVAILABLE: {
    status: 503,
    message: 'This gateway is not configured to send e-mail. Use another way to sign in.',
  },
  HOST_BUSY: {
    status: 503,
    message: 'The database host is busy. Try again shortly.',
    retryAfterSeconds: SOON,
  },
  HOST_FULL: {
    status: 503,
    message:
      'The disk of the database host is full or promised to other projects. Delete data, or contact the platform operator.',
  },
  COLLATION_OUTDATED: {
    status: 503,
    message:
      'The libraries of the database host sort text in another way since an update, so the database cannot be cloned before its indexes are rebuilt. Contact the platform operator.',
  },
  SETTINGS_INVALID: {
    status: 503,
    message: 'The gateway has missing or invalid settings. Correct them with `npm run deploy -- --var`.',
  },
  HOST_UNAVAILABLE: {
    status: 503,
    message: 'The database host is currently not connected. Try again shortly.',
    retryAfterSeconds: SOON,
  },
  HOST_UPGRADE_REQUIRED: {
    status: 503,
    message:
      'The agent of the database host is older than this operation. Try again after the platform operator has upgraded it.',
    retryAfterSeconds: LATER,
  },
  DATABASE_SERVER_UNAVAILABLE: {
    status: 503,
    message:
      'PostgreSQL or its connection pooler is currently unavailable on the database host. Try again shortly.',
    retryAfterSeconds: SOON,
  },
  RULES_NOT_APPLIED: {
    status: 503,
    message: 'The database host could not apply the access rules. Try again later.',
    retryAfterSeconds: LATER,
  },
  PROOF_FAILED: {
    status: 503,
    message: 'The new database did not accept a test login. Try again later.',
    retryAfterSeconds: LATER,
  },
  KEYS_UNAVAILABLE: {
    status: 503,
    message: "The identity provider's keys are currently unavailable. Try again shortly.",
    retryAfterSeconds: SOON,
  },
  TIME_LIMIT_REACHED: {
    status: 422,
    message:
      'The work in the database took longer than the time limit, or waited for a lock. It was ended, and nothing was changed. Make it smaller, or try again later.',
  },
  HOST_TIMEOUT: {
    status: 504,
    message:
      'The database host did not respond in time. Check whether the operation took effect, then try again.',
    retryAfterSeconds: SOON,
  },
} as const satisfies Record<string, FailureDefinition>;

export type FailureCode = keyof typeof FAILURES;

/**
 * Seconds for `Retry-After`; null if waiting does not help, or if the failure itself says how long to wait.
 */
export const retryAfterOf = (code: FailureCode): number | null =>
  (FAILURES[code] as FailureDefinition).retryAfterSeconds ?? null;

/** The code that earlier releases sent in its place; null if the code has not changed. */
export const formerCodeOf = (code: FailureCode): string | null =>
  (FAILURES[code] as FailureDefinition).formerCode ?? null;

/** A failure as plain data, as it crosses a Durable Object or the link of a host. */
export interface Failure {
  code: FailureCode;
  /** Members that join the error envelope, for instance `limit` or `details`. */
  fields?: Record<string, unknown>;
  /** The internal cause, for the log only. */
  reason?: string;
}
