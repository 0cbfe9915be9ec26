import type { Me } from '../data/resources.ts';
import { mayAdminister } from '../data/session.ts';
import { TEXT } from '../strings/common.ts';

/** The pages of a project and of its branch by what a person wants to do. */
export type PageGroup = 'data' | 'access' | 'operations';

/** The pages of the navigation. */
export const PROJECT_PAGES = [
  { to: '/projects/$projectId', icon: 'branch', name: TEXT.nav.branches, group: 'data' },
  { to: '/projects/$projectId/snapshots', icon: 'camera', name: TEXT.nav.snapshots, group: 'data' },
  { to: '/projects/$projectId/recoveries', icon: 'clock', name: TEXT.nav.recoveries, group: 'data' },
  { to: '/projects/$projectId/deleted-branches', icon: 'trash', name: TEXT.nav.deleted, group: 'data' },
  { to: '/projects/$projectId/masking', icon: 'eye', name: TEXT.nav.masking, group: 'data' },
  { to: '/projects/$projectId/network-rules', icon: 'shield', name: TEXT.nav.rules, group: 'access' },
  {
    to: '/projects/$projectId/sharing',
    icon: 'share',
    name: TEXT.nav.sharing,
    group: 'access',
    isForAdmins: true,
  },
  {
    to: '/projects/$projectId/trusts',
    icon: 'lock',
    name: TEXT.nav.trusts,
    group: 'access',
    isForAdmins: true,
  },
  { to: '/projects/$projectId/storage', icon: 'stack', name: TEXT.nav.storage, group: 'operations' },
  { to: '/projects/$projectId/changes', icon: 'compare', name: TEXT.nav.changes, group: 'operations' },
  { to: '/projects/$projectId/jobs', icon: 'clock', name: TEXT.nav.jobs, group: 'operations' },
  { to: '/projects/$projectId/following', icon: 'refresh', name: TEXT.nav.following, group: 'operations' },
  { to: '/projects/$projectId/settings', icon: 'gear', name: TEXT.nav.settings, group: 'operations' },
] as const;

export const BRANCH_PAGES = [
  {
    to: '/projects/$projectId/branches/$branch/tables',
    icon: 'table',
    name: TEXT.nav.tables,
    group: 'data',
  },
  { to: '/projects/$projectId/branches/$branch/sql', icon: 'terminal', name: TEXT.nav.sql, group: 'data' },
  {
    to: '/projects/$projectId/branches/$branch/difference',
    icon: 'compare',
    name: TEXT.nav.difference,
    group: 'data',
  },
  {
    to: '/projects/$projectId/branches/$branch/connect',
    icon: 'link',
    name: TEXT.nav.connect,
    group: 'access',
  },
  {
    to: '/projects/$projectId/branches/$branch/monitoring',
    icon: 'graph',
    name: TEXT.nav.monitoring,
    group: 'operations',
  },
] as const;

export const TENANT_PAGES = [
  { to: '/', icon: 'database', name: TEXT.nav.projects, group: 'data' },
  { to: '/keys', icon: 'key', name: TEXT.nav.keys, group: 'access', isForAdmins: true },
  { to: '/members', icon: 'people', name: TEXT.nav.members, group: 'access', isForAdmins: true },
  { to: '/company', icon: 'shield', name: TEXT.nav.company, group: 'access', isForOwners: true },
  { to: '/audit', icon: 'list', name: TEXT.nav.audit, group: 'operations', isForAdmins: true },
] as const;

/** The pages that a person may see. */
export const seenBy = <P extends object>(pages: readonly P[], me: Me): P[] =>
  pages.filter(
    (page) =>
      (!('isForAdmins' in page) || mayAdminister(me)) && (!('isForOwners' in page) || me.role === 'owner'),
  );
