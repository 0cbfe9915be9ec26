import type { Notification } from '../../shared/protocol/notifications.ts';
import type { Method, Params } from '../../shared/protocol/operations.ts';

type Values = Record<string, unknown>;

interface Translation<M extends Method> {
  /** The parameters there; null if they need the present version. Default: the same. */
  params?: (params: Params<M>) => Values | null;
  /** The result in its present form. Default: the same. */
  result?: (result: Values, params: Params<M>) => Values;
}

/** Operations as an agent of the previous version knows them; null: it does not. Default: the present ones. */
export type Translations = { [M in Method]?: Translation<M> | null };

/** An agent of that version runs no drills, and creates no project with an extension. */
const describedAs = (description: Values): Values => ({
  ...description,
  drills_since: null,
  project_extensions: null,
});

/**
 * How to speak with an agent of `PREVIOUS_VERSION`: what has changed since, so nothing after a release.
 * `test/edge/host-link/previous-version.test.ts` fails for a changed schema that has no line here.
 */
export const OPERATIONS: Translations = {
  'host.describe': { result: describedAs },
  'inventory.digest': {
    result: ({ description, ...result }) => ({
      ...result,
      description: description === null ? null : describedAs(description as Values),
    }),
  },
  'branch.clone': {
    params: ({ extensions, ...params }) => (extensions === undefined ? params : null),
  },
  'past.recover': {
    params: ({ bisection_id, ...params }) => (bisection_id === undefined ? params : null),
  },
  'bisect.start': null,
  'bisect.step': null,
  'bisect.end': null,
  'change.plan': null,
  'change.rehearse': null,
  'change.apply': null,
  'change.settle': null,
  'change.schema': null,
};

/** Parameters of notifications in the present form, where they differ. */
export const NOTIFICATIONS: { [N in Notification]?: (params: Values) => Values } = {
  // An agent of the previous version sends none.
  drill: (params) => params,
  // Nor does it say how far a replay is.
  progress: (params) => params,
};

/** @returns the parameters there; null if the call needs the present version */
export function toPreviousVersion<M extends Method>(
  method: M,
  params: Params<M>,
  translations: Translations = OPERATIONS,
): Values | null {
  const translation = translations[method] as Translation<M> | null | undefined;
  if (translation === null) return null;
  return translation?.params ? translation.params(params) : params;
}

/** A result of an agent of the previous version, in the present form. It is not validated yet. */
export function resultFromPreviousVersion<M extends Method>(
  method: M,
  result: Values,
  params: Params<M>,
  translations: Translations = OPERATIONS,
): Values {
  const translation = translations[method] as Translation<M> | null | undefined;
  return translation?.result?.(result, params) ?? result;
}

/** The parameters of a notification in the present form. They are not validated yet. */
export const notificationFromPreviousVersion = (method: Notification, params: Values): Values =>
  NOTIFICATIONS[method]?.(params) ?? params;
