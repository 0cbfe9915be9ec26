/** The texts of the frame and those that most pages have. */
export const TEXT = {
  name: 'branchgate',
  nav: {
    data: 'Data',
    access: 'Access',
    operations: 'Operations',
    projects: 'Projects',
    project: 'Project',
    branches: 'Branches',
    branch: 'Branch',
    connect: 'Connect',
    tables: 'Tables',
    monitoring: 'Monitoring',
    difference: 'Difference',
    sql: 'SQL',
    rules: 'Network rules',
    storage: 'Storage',
    snapshots: 'Snapshots',
    masking: 'Masking',
    following: 'Following',
    recoveries: 'Recoveries',
    deleted: 'Deleted branches',
    sharing: 'Sharing',
    changes: 'Changes',
    jobs: 'Jobs',
    trusts: 'Workload trusts',
    settings: 'Settings',
    audit: 'Audit log',
    keys: 'API keys',
    members: 'Members',
    company: 'Company sign-in',
    account: 'Your account',
  },
  states: {
    measuring: 'Waiting for the first measurement',
    stale: (age: string) =>
      `These values are ${age} old, because the database host is not connected. They continue when it is.`,
    rulePending: 'The rule takes effect when the database host is connected again.',
    readOnly: 'You can look at this project. To change it, ask its owner for another role.',
    ago: (age: string) => `${age} ago`,
  },
} as const;

/** What an exhausted storage quota means and what to do, by the state of the storage. */
export const STORAGE_STATES = {
  normal: '',
  warning:
    'The project uses more than 80 % of its storage quota. Delete branches or data, or raise the quota.',
  write_blocked:
    'The project has used up its storage quota, so only owner logins can write. Delete data or raise the quota.',
  closed:
    'The project exceeds twice its storage quota, so its databases accept no logins. Delete branches or raise the quota.',
} as const;

/** Why a branch is blocked. */
export const blockText = (reason: string) =>
  reason === 'following' ? 'Follows, read-only' : `Blocked: ${reason.replaceAll('_', ' ')}`;

/** How long a branch lives. */
export const LIFESPANS = [
  ['7d', '7 days'],
  ['1m', '1 month'],
  ['6m', '6 months'],
  ['1y', '1 year'],
  ['forever', 'No end'],
] as const;
