export const SETTINGS_TEXT = {
  saved: 'The project is changed.',
  id: 'Project ID',
  database: 'Main database',
  delete: 'Delete project',
  deleteTitle: (name: string) => `Delete ${name}?`,
  deleteHint: 'All databases of the project are dropped, main included. This cannot be undone.',
  deleted: (name: string) => `${name} is being deleted.`,
} as const;
