import { plural } from './plural.ts';

export const STORAGE_TEXT = {
  about: 'All branches of the project share one quota. Only active branches count.',
  quota: 'Storage quota',
  of: (limit: string) => `of ${limit}`,
  columns: ['Branch', 'Holds', 'Of the quota', 'Own on disk', 'Shared on disk', 'If deleted'],
  plainColumns: ['Branch', 'Holds', 'Of the quota', 'If deleted'],
  numbers: ['Holds', 'Of the quota', 'Own on disk', 'Shared on disk'],
  snapshots: (count: number) => plural(count, 'kept snapshot'),
  ofSnapshots: (own: string | null) =>
    `${own === null ? '' : `with ${own} of their own on the disk `}do not count against the quota.`,
  notMeasured: 'The file system of the database host does not report what branches share on the disk.',
  deletingFrees: (size: string) => `frees ${size} of the quota`,
  isMain: 'never deleted',
  marks: { warning: 'warning', write_blocked: 'writes stop', closed: 'databases close' },
  badges: { warning: 'Storage low', write_blocked: 'Write-blocked', closed: 'Closed' } as Record<
    string,
    string
  >,
  states: {
    normal: '',
    warning:
      'The project uses more than 80 % of its storage quota. Delete branches or data, or raise the quota.',
    write_blocked:
      'The project has used up its storage quota, so only owner logins can write. Delete data or raise the quota.',
    closed:
      'The project exceeds twice its storage quota, so its databases accept no logins. Delete branches or raise the quota.',
  },
} as const;
