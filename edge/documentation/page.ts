import { html, raw } from 'hono/html';
import { exampleOf } from './example.ts';
import { type Document, operationsOf, type ReadableOperation, resolve, type Schema } from './openapi.ts';
import { operationSection, rowOf } from './operation.ts';
import { codesOf, fieldTable, schemaTable } from './schema.ts';
import { STYLE } from './style.ts';
import { line, type Markup, paragraphs, sample } from './text.ts';

/** The page, and the policy that allows only its own style: no scripts, resources, frames or forms. */
interface DocumentationPage {
  html: string;
  contentSecurityPolicy: string;
}

interface Chapter {
  title: string;
  description?: string | undefined;
  operations?: ReadableOperation[];
  sections: Markup[];
}

async function policyFor(style: string): Promise<string> {
  const digest = new Uint8Array(await crypto.subtle.digest('SHA-256', new TextEncoder().encode(style)));
  const hash = btoa(String.fromCharCode(...digest));
  return `default-src 'none'; style-src 'sha256-${hash}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'`;
}

/** One chapter per tag, then the components that operations link to. */
function chaptersOf(document: Document): Chapter[] {
  const { tags = [], components = {} } = document;
  const operations = operationsOf(document);
  const titles = new Set([...tags, ...operations.map(({ tag }) => ({ name: tag }))].map(({ name }) => name));
  const byTag = [...titles].map((title): Chapter => {
    const tagged = operations.filter(({ tag }) => tag === title);
    const sections = tagged.map((operation) => operationSection(document, operation));
    const description = tags.find(({ name }) => name === title)?.description;
    return { title, description, operations: tagged, sections };
  });

  const headers = Object.entries(components.headers ?? {}).map(([name, header]) =>
    rowOf(name, resolve(document, header)),
  );
  const section = ([name, schema]: [
    string,
    Schema,
  ]) => html`<section class="part" id="schema-${name}"><h3>${name}</h3>
${paragraphs(schema.description)}${schemaTable(document, schema, 'JSON')}${sample(exampleOf(document, schema))}</section>`;
  const schemas = Object.entries(components.schemas ?? {});
  const isError = ([, schema]: [string, Schema]) => codesOf(document, schema).length > 0;
  return [
    ...byTag,
    { title: 'Headers', sections: headers.length > 0 ? [fieldTable('Header', headers)] : [] },
    { title: 'Schemas', sections: schemas.filter((named) => !isError(named)).map(section) },
    { title: 'Errors', sections: schemas.filter(isError).map(section) },
  ].filter(({ sections }) => sections.length > 0);
}

const anchor = ({ title }: Chapter) => `chapter-${title.replaceAll(/\W+/g, '-')}`;

const contents = (chapter: Chapter) => html`<li><a href="#${anchor(chapter)}">${chapter.title}</a>
${
  chapter.operations &&
  html`<ul>${chapter.operations.map(({ id, summary }) => html`<li><a href="#${id}">${line(summary)}</a></li>`)}</ul>`
}</li>`;

const body = (chapter: Chapter) => html`<h2 id="${anchor(chapter)}">${chapter.title}</h2>
${paragraphs(chapter.description)}${chapter.sections}`;

/** Renders an OpenAPI document as an HTML page. All texts of the document are escaped. */
export async function documentationPage(document: Document): Promise<DocumentationPage> {
  const { title, version, description } = document.info;
  const chapters = chaptersOf(document);
  const page = await html`<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>${title}</title>
<style>${raw(STYLE)}</style>
</head>
<body>
<a class="skip" href="#content">Skip to the content</a>
<div class="columns">
<nav aria-label="Contents"><ul>${chapters.map(contents)}</ul></nav>
<main id="content">
<h1>${title}</h1>
<p class="version">Version ${version}</p>
${paragraphs(description)}
<p>${line('In the examples, `$BASE_URL` is the address of this service and `$TOKEN` is your token.')}</p>
${chapters.map(body)}
</main>
</div>
</body>
</html>`;
  return { html: page.toString(), contentSecurityPolicy: await policyFor(STYLE) };
}
