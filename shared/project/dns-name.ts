/**
 * The label of a project's name in the domain of the databases: `<app key>-<env>`. Hyphens stand for the
 * underscores of the app key, because certificates are not valid for a name with underscores. No other project
 * has the same, because neither part has a hyphen.
 */
export const projectLabel = (appKey: string, env: string): string => `${appKey.replaceAll('_', '-')}-${env}`;

/** The name in a certificate that covers the names of all projects of the domain. */
export const wildcardOf = (domain: string): string => `*.${domain}`;

/** Whether the wildcard covers the name: a name in a domain below this one is in that domain only. */
export const isNameIn = (domain: string, name: string): boolean =>
  name.endsWith(`.${domain}`) && name.indexOf('.') === name.length - domain.length - 1;
