export const ROLES_TEXT = {
  role: 'Role',
  owner: 'Owner',
  admin: 'Admin',
  operator: 'Operator',
  viewer: 'Viewer',
} as const;
