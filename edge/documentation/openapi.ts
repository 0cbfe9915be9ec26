import type { OpenAPIHono } from '@hono/zod-openapi';

/** An OpenAPI 3.1 document. */
export type Document = ReturnType<OpenAPIHono['getOpenAPI31Document']>;

type PathItem = NonNullable<Document['paths']>[string];
type Operation = NonNullable<PathItem['get']>;
type Body = Exclude<NonNullable<Operation['requestBody']>, Reference>;
export type Parameter = Exclude<NonNullable<Operation['parameters']>[number], Reference>;
export type Response = Exclude<NonNullable<NonNullable<Operation['responses']>['default']>, Reference>;
export type Content = Body['content'];
export type Schema = NonNullable<NonNullable<Document['components']>['schemas']>[string];
export type ResolvedSchema = Exclude<Schema, Reference>;

interface Reference {
  $ref: string;
  summary?: string;
  description?: string;
}

/** The reference that `value` is, otherwise null. */
export function referenceOf(value: object): string | null {
  return '$ref' in value && typeof value.$ref === 'string' ? value.$ref : null;
}

/** The name in a reference: the last part of its path. */
export const nameOf = (reference: string) => reference.slice(reference.lastIndexOf('/') + 1);

/**
 * Resolves a reference into `components`; other values are returned as they are. Unresolvable references give
 * `{}`.
 */
export function resolve<T extends object>(document: Document, value: T): Exclude<T, Reference> {
  const components = document.components as Record<string, Record<string, object>> | undefined;
  const visited = new Set<string>();
  let found: object = value;
  for (let reference = referenceOf(found); reference !== null; reference = referenceOf(found)) {
    const kind = reference.split('/').at(-2) ?? '';
    found = visited.has(reference) ? {} : (components?.[kind]?.[nameOf(reference)] ?? {});
    visited.add(reference);
  }
  return found as Exclude<T, Reference>;
}

const METHODS = ['get', 'put', 'post', 'patch', 'delete', 'head', 'options'] as const;

/** An operation with all references resolved that the page needs. */
export interface ReadableOperation {
  /** Its anchor in the page. */
  id: string;
  method: (typeof METHODS)[number];
  path: string;
  tag: string;
  summary: string;
  description: string | undefined;
  deprecated: boolean;
  /** True if it needs no token. */
  isPublic: boolean;
  /** The first security scheme that it accepts. */
  bearer: string | null;
  /** From the extension `x-roles`: a list of roles, or a record of the projects that each role can access. */
  roles: string[];
  /** From the extension `x-scope`. */
  scopes: string[];
  parameters: Parameter[];
  body: Body | null;
  responses: [status: string, Response][];
}

function rolesOf(roles: string[] | Record<string, string> = {}): string[] {
  return Array.isArray(roles) ? roles : Object.entries(roles).map(([role, reach]) => `${role} (${reach})`);
}

const securityOf = (document: Document, operation: Operation) =>
  operation.security ?? document.security ?? [];

/** All operations, in the document's order. */
export function operationsOf(document: Document): ReadableOperation[] {
  return Object.entries(document.paths ?? {}).flatMap(([path, item]) =>
    METHODS.flatMap((method) => {
      const operation = item[method];
      if (!operation) return [];
      return {
        id: operation.operationId ?? `${method}${path.replaceAll(/[^\w]+/g, '-')}`,
        method,
        path,
        tag: operation.tags?.[0] ?? 'Other',
        summary: operation.summary ?? `${method.toUpperCase()} ${path}`,
        description: operation.description,
        deprecated: operation.deprecated ?? false,
        isPublic: securityOf(document, operation).length === 0,
        bearer: Object.keys(securityOf(document, operation)[0] ?? {})[0] ?? null,
        roles: rolesOf(operation['x-roles']),
        scopes: [operation['x-scope'] ?? []].flat(),
        parameters: [...(item.parameters ?? []), ...(operation.parameters ?? [])].map((parameter) =>
          resolve(document, parameter),
        ),
        body: operation.requestBody ? resolve(document, operation.requestBody) : null,
        responses: Object.entries(operation.responses ?? {}).map(([status, response]) => [
          status,
          resolve(document, response),
        ]),
      };
    }),
  );
}
