export const PALETTE_TEXT = {
  hint: 'Go to a page, a project or a branch',
  results: 'Results',
  nothing: 'Nothing matches.',
  groups: { page: 'Page', project: 'Project', branch: 'Branch', action: 'Action' },
  inBranch: (branch: string, page: string) => `${branch} · ${page}`,
  newProject: 'New project',
  newBranch: 'New branch',
  newBranchFrom: (branch: string) => `New branch from ${branch}`,
  refresh: 'Refresh this page',
  theme: (name: string) => `Appearance: ${name}`,
  account: 'Your account',
  reference: 'API reference',
} as const;
