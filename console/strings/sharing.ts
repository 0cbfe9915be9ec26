export const SHARING_TEXT = {
  about: 'Owners and admins of the tenant see every project. Share this one with other members.',
  columns: ['E-mail address', 'May', 'Since'],
  roles: { operator: 'Change', viewer: 'Look' },
  member: 'Member',
  choose: 'Choose a member',
  role: 'May',
  add: 'Share',
  shared: (email: string) => `The project is shared with ${email}.`,
  none: 'Not shared',
  noneHint: 'Its creator and the owners and admins of the tenant have access.',
  nobody: 'All members of the tenant have access already. Invite people on the page Members.',
  roleOf: (email: string) => `Role of ${email}`,
  remove: 'Stop sharing',
  removeOf: (email: string) => `Stop sharing with ${email}`,
  removeHint:
    'Passwords and network access that the member knows stay. Remove network rules and rotate passwords to end them.',
  removed: (email: string) => `The project is no longer shared with ${email}.`,
} as const;
