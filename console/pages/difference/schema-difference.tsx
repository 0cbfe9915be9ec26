import { useQuery } from '@tanstack/react-query';
import { Snippet } from '../../components/copy.tsx';
import { Empty, Loaded, Note } from '../../components/feedback.tsx';
import { ListTable } from '../../components/list-table.tsx';
import { DIFFERENCE_TEXT } from '../../strings/difference.ts';
import { differenceQuery, type Sides } from './differences.ts';

const TONES = { added: 'good', changed: 'warn', dropped: 'bad' } as const;

/** What differs in the schemas, and statements for it. */
export function SchemaDifference({ sides }: { sides: Sides }) {
  const difference = useQuery(differenceQuery(sides, 'schema'));
  return (
    <section className="card" aria-labelledby="schema">
      <header>
        <h2 id="schema">{DIFFERENCE_TEXT.schema}</h2>
      </header>
      <Loaded query={difference}>
        {({ schema }) => {
          if (!schema) return null;
          const { changes, statements, not_modelled } = schema;
          return (
            <>
              {changes.length === 0 ? (
                <Empty icon="check" title={DIFFERENCE_TEXT.sameSchema} />
              ) : (
                <ListTable columns={DIFFERENCE_TEXT.schemaColumns} hasActions={false}>
                  {changes.map(({ kind, identity, change, detail }) => (
                    <tr key={`${kind} ${identity}`}>
                      <td>
                        <div className="mono">{identity}</div>
                        {detail !== undefined && <div className="small quiet">{detail}</div>}
                      </td>
                      <td>{kind.replaceAll('_', ' ')}</td>
                      <td>
                        <span className={`badge ${TONES[change]}`}>
                          {DIFFERENCE_TEXT.schemaChanges[change]}
                        </span>
                      </td>
                    </tr>
                  ))}
                </ListTable>
              )}
              {(statements.length > 0 || not_modelled.length > 0) && (
                <div className="body stack">
                  {statements.length > 0 && (
                    <>
                      <h3>{DIFFERENCE_TEXT.statements}</h3>
                      <Snippet
                        code={statements.map((statement) => `${statement};`).join('\n')}
                        label={DIFFERENCE_TEXT.copyStatements}
                      />
                      <p className="small quiet">{DIFFERENCE_TEXT.read}</p>
                    </>
                  )}
                  {not_modelled.length > 0 && (
                    <Note tone="warn">
                      <p>{DIFFERENCE_TEXT.notModelled}</p>
                      <ul>
                        {not_modelled.map((text) => (
                          <li key={text}>{text}</li>
                        ))}
                      </ul>
                    </Note>
                  )}
                </div>
              )}
            </>
          );
        }}
      </Loaded>
    </section>
  );
}
