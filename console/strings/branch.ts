import { plural } from './plural.ts';

export const BRANCH_TEXT = {
  status: {
    creating: 'Creating',
    active: 'Active',
    expired: 'Expired',
    deleting: 'Deleting',
    deleted: 'Deleted',
    failed: 'Failed',
  },
  blocked: (reason: string) => `Blocked: ${reason.replaceAll('_', ' ')}`,
  stays: 'No end',
  ends: {
    expires: (left: string) => `Expires in ${left}`,
    lease: (left: string) => `Lease ends in ${left}`,
    deleted: (left: string) => `Deleted in ${left}`,
  },
  connections: (last: number, top: number) =>
    `${plural(last, 'connection')} now, at most ${top} in the last hour`,
} as const;
