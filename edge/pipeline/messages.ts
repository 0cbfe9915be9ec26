import { FAILURES, type FailureCode } from '../../shared/failures.ts';

/** Which operation a request calls, as far as messages depend on it. */
export interface CalledOperation {
  id: string;
  /** Whether it changes nothing. */
  isRead: boolean;
}

/** Messages of operations that change nothing. Nobody has to check what they did. */
const OF_READS: Partial<Record<FailureCode, string>> = {
  HOST_TIMEOUT: 'The database host did not respond in time. Try again.',
  TIME_LIMIT_REACHED:
    'The work in the database took longer than the time limit, or waited for a lock, and was ended. Make it smaller, or try again later.',
};

type OfOperation = readonly [operations: readonly string[], message: string];

const FOLLOWS_ALREADY =
  'main follows a database elsewhere already. Cut over or stop following before you fill it in another way.';
const SNAPSHOT_GONE = 'The safety snapshot of the change is gone, so it cannot be undone.';
const NO_MAIL = 'This gateway is not configured to send e-mail, so it cannot invite anybody';

/** The messages of operations for which the general one of the failure would be about another operation. */
const OF_OPERATIONS: Partial<Record<FailureCode, readonly OfOperation[]>> = {
  BRANCH_FOLLOWING: [[['probeSource', 'startFollowing', 'probeImport', 'importSource'], FOLLOWS_ALREADY]],
  BRANCH_NOT_LEASED: [
    [['startRehearsal'], 'A rehearsal needs a branch with a lease. Create one with lease_seconds.'],
  ],
  BRANCH_PROTECTED: [
    [
      ['createBranch', 'createBranches'],
      'The branch of this name is protected, so it is not replaced. Choose another name, or end its protection first.',
    ],
    [['updateBranch'], 'main is always protected, has no end, and keeps its name.'],
    [['deleteBranch'], 'The branch is protected. End its protection first; main is never deleted.'],
    [['resetBranch'], 'The branch is protected. To reset it, send its name as `confirm`.'],
    [['undoBranch'], 'The branch is protected. To take it back, send its name as `confirm`.'],
    [
      ['runQuery'],
      'Queries do not change protected branches, nor main once it has objects. To see what it would do, try it on a copy: `POST …/try` or `branchgate try`. To change it, use the connection URL, or another branch.',
    ],
  ],
  DATABASE_NAME_TOO_LONG: [
    [
      ['probeBisection'],
      'The names of the databases of this project leave no room for those of a bisection.',
    ],
  ],
  HOST_FULL: [
    [
      ['createProject', 'updateProject', 'updateProjectQuota'],
      'The disk of the database host is full or promised to other projects. Choose a smaller storage quota, or contact the platform operator.',
    ],
  ],
  HOST_BUSY: [
    [
      ['startBisection'],
      'Another bisection of your team is open, or the database host has three of others. End yours, or try again later.',
    ],
    [
      ['updateBranch'],
      'A job of the branch is open, or a branch is being cloned from it. Rename it when that has ended.',
    ],
  ],
  HOST_TIMEOUT: [
    [
      ['updateBranch'],
      'The database host has not renamed the branch yet. Repeat the request: it waits for the same job.',
    ],
  ],
  MAIL_UNAVAILABLE: [
    [['createInvitation', 'createTenant'], `${NO_MAIL}. Ask the platform operator to set MAIL_API_URL.`],
    [
      ['startPasswordReset'],
      'This gateway is not configured to send e-mail, so no code can reach you. Ask an owner of your team, or the platform operator.',
    ],
  ],
  MASKING_INCOMPLETE: [
    [
      ['checkMasking', 'previewReset'],
      'The masking policy does not cover the branch. Give the columns a rule, and check it again.',
    ],
  ],
  NO_SNAPSHOT: [[['undoChange'], SNAPSHOT_GONE]],
  PROJECT_BUSY: [
    [
      ['applyChange', 'undoChange'],
      'Another change of the project is being applied or undone. Try again when it has ended.',
    ],
    [['rehearseChange'], 'The change is being rehearsed. Try again when its job has ended.'],
    [
      ['diffBranch', 'previewReset'],
      'The project compares other databases at the moment, and runs one comparison at a time. Try again when it has ended, or cancel it.',
    ],
  ],
  SIGN_UP_CLOSED: [
    [
      ['createInvitation'],
      'This gateway accepts no accounts of this address. Ask the platform operator to allow its domain.',
    ],
  ],
  SOURCE_BUSY: [
    [
      ['tryStatements', 'getTrial'],
      'A session on the branch stayed in a transaction for too long, so it could not be copied. End the transaction, then try again.',
    ],
  ],
  invalid_request: [
    [
      ['authorizeClient', 'previewOAuthGrant', 'createOAuthGrant', 'issueAgentTokens', 'revokeAgentToken'],
      'The request of the client is malformed. See error_description.',
    ],
  ],
  invalid_target: [
    [
      ['authorizeClient', 'previewOAuthGrant', 'createOAuthGrant', 'issueAgentTokens'],
      'The resource is not the one that this service protects. Send the URL of /mcp as resource.',
    ],
  ],
  unsupported_grant_type: [
    [['issueAgentTokens'], 'The grant type is not supported. Exchange a code, or a refresh token.'],
  ],
  SOURCE_NOT_ACTIVE: [
    [
      ['diffBranch', 'listChangedRows'],
      'What the branch is compared with does not exist any more, or is not active. Name a branch or a snapshot with `against`.',
    ],
    [
      ['previewReset', 'probeBisection'],
      'The branch does not exist any more, or is not active. Check its status.',
    ],
    [['resetBranch'], 'What the branch is reset to is not active. Name a snapshot with `to`.'],
    [
      ['tryStatements', 'getTrial'],
      'What was to be copied does not exist any more. Check the status of the branch.',
    ],
    [['undoChange'], SNAPSHOT_GONE],
    [['undoBranch'], 'The checkpoint does not exist any more. List the checkpoints of the branch.'],
  ],
};

/** What is wrong, then what the client can do about it. @param called if the failure is a response's */
export function messageOf(code: FailureCode, called?: CalledOperation): string {
  const [, ofOperation] =
    OF_OPERATIONS[code]?.find(([operations]) => called && operations.includes(called.id)) ?? [];
  return ofOperation ?? (called?.isRead ? OF_READS[code] : undefined) ?? FAILURES[code].message;
}

/** The operations that the table names, which a test compares with the description. */
export const NAMED_OPERATIONS: readonly (readonly [FailureCode, string])[] = (
  Object.entries(OF_OPERATIONS) as [FailureCode, readonly OfOperation[]][]
).flatMap(([code, rows]) => rows.flatMap(([operations]) => operations.map((id) => [code, id] as const)));
