import type { Me } from '../data/resources.ts';
import { mayAdminister } from '../data/session.ts';
import { TEXT } from '../strings/common.ts';

/** The pages of the navigation. */
export const PROJECT_PAGES = [
  { to: '/projects/$projectId', icon: 'branch', name: TEXT.nav.branches },
  { to: '/projects/$projectId/snapshots', icon: 'camera', name: TEXT.nav.snapshots },
  { to: '/projects/$projectId/deleted-branches', icon: 'trash', name: TEXT.nav.deleted },
  { to: '/projects/$projectId/following', icon: 'refresh', name: TEXT.nav.following },
  { to: '/projects/$projectId/masking', icon: 'eye', name: TEXT.nav.masking },
  { to: '/projects/$projectId/network-rules', icon: 'shield', name: TEXT.nav.rules },
  { to: '/projects/$projectId/storage', icon: 'stack', name: TEXT.nav.storage },
  { to: '/projects/$projectId/jobs', icon: 'clock', name: TEXT.nav.jobs },
  { to: '/projects/$projectId/sharing', icon: 'share', name: TEXT.nav.sharing, isForAdmins: true },
  { to: '/projects/$projectId/trusts', icon: 'lock', name: TEXT.nav.trusts },
  { to: '/projects/$projectId/settings', icon: 'gear', name: TEXT.nav.settings },
] as const;

export const BRANCH_PAGES = [
  { to: '/projects/$projectId/branches/$branch/connect', icon: 'link', name: TEXT.nav.connect },
  { to: '/projects/$projectId/branches/$branch/tables', icon: 'table', name: TEXT.nav.tables },
  { to: '/projects/$projectId/branches/$branch/sql', icon: 'terminal', name: TEXT.nav.sql },
  { to: '/projects/$projectId/branches/$branch/monitoring', icon: 'graph', name: TEXT.nav.monitoring },
  { to: '/projects/$projectId/branches/$branch/difference', icon: 'compare', name: TEXT.nav.difference },
] as const;

export const TENANT_PAGES = [
  { to: '/', icon: 'database', name: TEXT.nav.projects },
  { to: '/audit', icon: 'list', name: TEXT.nav.audit, isForAdmins: true },
  { to: '/keys', icon: 'key', name: TEXT.nav.keys, isForAdmins: true },
  { to: '/members', icon: 'people', name: TEXT.nav.members, isForAdmins: true },
  { to: '/company', icon: 'shield', name: TEXT.nav.company, isForOwners: true },
] as const;

/** The pages that a person may see. */
export const seenBy = <P extends object>(pages: readonly P[], me: Me): P[] =>
  pages.filter(
    (page) =>
      (!('isForAdmins' in page) || mayAdminister(me)) && (!('isForOwners' in page) || me.role === 'owner'),
  );
