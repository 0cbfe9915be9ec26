import type { Me } from '../data/resources.ts';
import { mayAdminister } from '../data/session.ts';
import { TEXT } from '../strings/common.ts';

/** The pages of the navigation: address, icon, name, and who sees them. */
export const PROJECT_PAGES = [
  ['/projects/$projectId', 'branch', TEXT.nav.branches, 'all'],
  ['/projects/$projectId/snapshots', 'camera', TEXT.nav.snapshots, 'all'],
  ['/projects/$projectId/deleted-branches', 'trash', TEXT.nav.deleted, 'all'],
  ['/projects/$projectId/network-rules', 'shield', TEXT.nav.rules, 'all'],
  ['/projects/$projectId/storage', 'stack', TEXT.nav.storage, 'all'],
  ['/projects/$projectId/jobs', 'clock', TEXT.nav.jobs, 'all'],
  ['/projects/$projectId/sharing', 'share', TEXT.nav.sharing, 'admins'],
  ['/projects/$projectId/trusts', 'lock', TEXT.nav.trusts, 'all'],
  ['/projects/$projectId/settings', 'gear', TEXT.nav.settings, 'all'],
] as const;

export const BRANCH_PAGES = [
  ['/projects/$projectId/branches/$branch/connect', 'link', TEXT.nav.connect],
  ['/projects/$projectId/branches/$branch/tables', 'table', TEXT.nav.tables],
  ['/projects/$projectId/branches/$branch/sql', 'terminal', TEXT.nav.sql],
  ['/projects/$projectId/branches/$branch/monitoring', 'graph', TEXT.nav.monitoring],
  ['/projects/$projectId/branches/$branch/difference', 'compare', TEXT.nav.difference],
] as const;

export const TENANT_PAGES = [
  ['/', 'database', TEXT.nav.projects, 'all'],
  ['/audit', 'list', TEXT.nav.audit, 'admins'],
  ['/keys', 'key', TEXT.nav.keys, 'admins'],
  ['/members', 'people', TEXT.nav.members, 'admins'],
] as const;

/** The pages that a person may see. */
export const seenBy = <P extends readonly [...unknown[], 'all' | 'admins']>(
  pages: readonly P[],
  me: Me,
): P[] => pages.filter((page) => page.at(-1) === 'all' || mayAdminister(me));
