import { plural } from './plural.ts';

export const JOBS_TEXT = {
  about: 'Long work on the databases of this project, newest first.',
  none: 'No jobs yet',
  steps: 'Steps',
  starting: 'Starting',
  statuses: { queued: 'Queued', running: 'Running', succeeded: 'Done', failed: 'Failed' },
  stepStates: { pending: 'waiting', running: 'running', succeeded: 'done', failed: 'failed' },
  kinds: {
    'project.create': 'Create project',
    'branch.create': 'Create branch',
    'branch.create_batch': 'Create branches',
    'branch.delete': 'Delete branch',
    'branch.diff': 'Compare branches',
    'branch.reset': 'Reset branch',
    'branch.restore': 'Restore branch',
    'snapshot.create': 'Take snapshot',
    'snapshot.delete': 'Delete snapshot',
    'project.delete': 'Delete project',
  } as Record<string, string>,
  stepNames: {
    prepare: 'Prepare logins, rules and pooler',
    clone: 'Clone the database',
    publish: 'Publish name and rights',
    prove: 'Prove that a login works',
    swap: 'Replace the database',
    take: 'Copy the database',
    drop: 'Drop databases, logins and rules',
    compare: 'Compare the databases',
  } as Record<string, string>,
  attempts: (count: number) => `${plural(count, 'attempt')} failed`,
} as const;
