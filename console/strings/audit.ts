export const AUDIT_TEXT = {
  about: 'Who did what in your tenant, and from where.',
  export: 'Export as CSV',
  none: 'No events match',
  name: 'Event',
  project: 'Project',
  branch: 'Branch',
  everyProject: 'Every project',
  actor: 'Actor',
  actorType: 'Kind of actor',
  everyActor: 'Every kind',
  actorId: 'Actor ID',
  client: 'Client',
  columns: ['Time', 'Event', 'Actor', 'Address'],
  actors: { user: 'Person', key: 'API key', workload: 'Workload', service: 'Service' } as Record<
    string,
    string
  >,
} as const;
