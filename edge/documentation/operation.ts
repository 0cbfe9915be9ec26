import { html } from 'hono/html';
import { curlOf, exampleFor } from './example.ts';
import {
  type Content,
  type Document,
  type Parameter,
  type ReadableOperation,
  type Response,
  referenceOf,
  resolve,
} from './openapi.ts';
import { codesOf, type Field, fieldTable, schemaNames, schemaTable } from './schema.ts';
import { line, type Markup, paragraphs, sample, schemaLink } from './text.ts';

const listed = (parts: readonly (string | Markup)[]) =>
  html`${parts.map((part, n) => [n > 0 && ', ', html`<code>${part}</code>`])}`;

/** A parameter or a header as a table row. */
export function rowOf(
  name: string,
  { schema = {}, required = false, description }: Partial<Parameter>,
): Field {
  return { name, schema, required, description };
}

function contentSection(document: Document, content: Content): Markup {
  return html`${Object.entries(content).map(
    ([type, media]) =>
      html`${schemaTable(document, media.schema ?? {}, type)}${sample(exampleFor(document, media))}`,
  )}`;
}

function accessSection({ isPublic, bearer, roles, scopes }: ReadableOperation): Markup {
  if (isPublic) return html`<p class="facts">Public: no token required.</p>`;
  const who =
    roles.length > 0 ? html`Roles: ${roles.join(', ')}.` : html`Requires a token: <code>${bearer}</code>.`;
  return html`<p class="facts">${who}${scopes.length > 0 && html` Scope: ${listed(scopes)}.`}</p>`;
}

/** A success in full; a failure as one line with links, unless its body is an unnamed schema. */
function responseSection(document: Document, [status, response]: [string, Response]): Markup {
  const { description, content = {}, headers = {} } = response;
  const isSuccess = status.startsWith('2');
  const schemas = Object.values(content).flatMap(({ schema }) => schema ?? []);
  const names = schemas.flatMap(schemaNames);
  const codes = isSuccess ? [] : schemas.flatMap((schema) => codesOf(document, schema));
  const undescribed = [...new Set(codes)].filter((code) => !description.includes(`\`${code}\``));
  const head = html`<b class="status ${isSuccess ? 'ok' : ''}">${status}</b> ${line(description, names)}
${undescribed.length > 0 && listed(undescribed.map((code) => (names.includes(code) ? schemaLink(code) : code)))}`;
  if (schemas.length === 0 || (!isSuccess && schemas.every((schema) => schemaNames(schema).length > 0)))
    return html`<p class="response">${head}</p>`;

  const entries = Object.entries(headers);
  const shared = entries.filter(([, header]) => referenceOf(header) !== null);
  const own = entries.filter(([, header]) => referenceOf(header) === null);
  return html`<details class="response"${isSuccess && html` open`}><summary>${head}</summary>
${shared.length > 0 && html`<p class="facts">Headers: ${listed(shared.map(([name]) => html`<a href="#chapter-Headers">${name}</a>`))}</p>`}
${fieldTable(
  'Header',
  own.map(([name, header]) => rowOf(name, resolve(document, header))),
)}${contentSection(document, content)}</details>`;
}

/** One operation: description, access, parameters, body, an example call and responses. */
export function operationSection(document: Document, operation: ReadableOperation): Markup {
  const { id, method, path, summary, description, deprecated, parameters, body, responses } = operation;
  const rows = parameters.map((parameter) => ({
    ...rowOf(parameter.name, parameter),
    location: parameter.in,
  }));
  return html`<section class="part" id="${id}">
<h3><span class="method ${method}">${method.toUpperCase()}</span> <a href="#${id}">${path}</a></h3>
<p class="summary">${line(summary)}${deprecated && html` <strong>Deprecated.</strong>`}</p>
${paragraphs(description)}${accessSection(operation)}
${rows.length > 0 && html`<h4>Parameters</h4>${fieldTable('Parameter', rows)}`}
${
  body &&
  html`<h4>Request body${!body.required && ' (optional)'}</h4>
${paragraphs(body.description)}${contentSection(document, body.content)}`
}
<h4>Call</h4>${sample(curlOf(document, operation))}
<h4>Responses</h4>${responses.map((response) => responseSection(document, response))}
</section>`;
}
