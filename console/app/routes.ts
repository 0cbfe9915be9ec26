import { index, layout, rootRoute, route } from '@tanstack/virtual-file-routes';

/** The file of each address. The build makes `route-tree.gen.ts` from it, with a script for each page. */
export const routes = rootRoute('app/root.tsx', [
  route('/sign-in', 'pages/sign-in/sign-in-page.tsx'),
  route('/authorize', 'pages/consent/consent-page.tsx'),
  layout('inside', 'app/shell.tsx', [
    index('pages/projects/projects-page.tsx'),
    route('/new', 'pages/projects/new-project-page.tsx'),
    route('/account', 'pages/account/account-page.tsx'),
    route('/account/second-factor', 'pages/account/second-factor-page.tsx'),
    route('/members', 'pages/members/members-page.tsx'),
    route('/keys', 'pages/machine-access/api-keys-page.tsx'),
    route('/company', 'pages/company-sign-in/company-sign-in-page.tsx'),
    route('/audit', 'pages/audit/audit-page.tsx'),
    route('/projects/$projectId', 'app/project-shell.tsx', [
      index('pages/branches/branches-page.tsx'),
      route('/create-branch', 'pages/create-branch/create-branch-page.tsx'),
      route('/network-rules', 'pages/network-rules/network-rules-page.tsx'),
      route('/storage', 'pages/storage/storage-page.tsx'),
      route('/following', 'pages/following/following-page.tsx'),
      route('/masking', 'pages/masking/masking-page.tsx'),
      route('/snapshots', 'pages/snapshots/snapshots-page.tsx'),
      route('/recoveries', 'pages/recoveries/recoveries-page.tsx'),
      route('/deleted-branches', 'pages/deleted-branches/deleted-branches-page.tsx'),
      route('/sharing', 'pages/sharing/sharing-page.tsx'),
      route('/changes', 'pages/changes/changes-page.tsx'),
      route('/jobs', 'pages/jobs/jobs-page.tsx'),
      route('/trusts', 'pages/machine-access/trusts-page.tsx'),
      route('/settings', 'pages/settings/settings-page.tsx'),
      route('/branches/$branch/connect', 'pages/connect/connect-page.tsx'),
      route('/branches/$branch/tables', 'pages/tables/tables-page.tsx'),
      route('/branches/$branch/sql', 'pages/sql/sql-page.tsx'),
      route('/branches/$branch/monitoring', 'pages/monitoring/monitoring-page.tsx'),
      route('/branches/$branch/difference', 'pages/difference/difference-page.tsx'),
    ]),
  ]),
]);
