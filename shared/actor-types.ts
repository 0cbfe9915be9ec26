/** The types of authors of audit events; actions of the service itself have none. */
export const ACTOR_TYPES = ['user', 'key', 'workload', 'grant'] as const;
export type ActorType = (typeof ACTOR_TYPES)[number];
