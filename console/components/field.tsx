import { type InputHTMLAttributes, type ReactNode, type SelectHTMLAttributes, useId } from 'react';

interface Described {
  label: string;
  hint?: ReactNode;
  problem?: string | null | undefined;
}

function useDescription({ hint, problem }: Pick<Described, 'hint' | 'problem'>) {
  const id = useId();
  const describedBy = [hint && `${id}-hint`, problem && `${id}-problem`].filter(Boolean).join(' ');
  const texts = (
    <>
      {hint && (
        <span className="hint" id={`${id}-hint`}>
          {hint}
        </span>
      )}
      {problem && (
        <span className="problem" id={`${id}-problem`} role="alert">
          {problem}
        </span>
      )}
    </>
  );
  const attributes = {
    id,
    'aria-describedby': describedBy || undefined,
    'aria-invalid': problem ? true : undefined,
  };
  return { id, attributes, texts };
}

type InputProps = Described & InputHTMLAttributes<HTMLInputElement>;

export function Field({ label, hint, problem, className, ...input }: InputProps) {
  const { id, attributes, texts } = useDescription({ hint, problem });
  return (
    <div className="field">
      <label htmlFor={id}>{label}</label>
      <input className={className ? `input ${className}` : 'input'} {...attributes} {...input} />
      {texts}
    </div>
  );
}

type SelectProps = Described & SelectHTMLAttributes<HTMLSelectElement>;

export function SelectField({ label, hint, problem, children, ...select }: SelectProps) {
  const { id, attributes, texts } = useDescription({ hint, problem });
  return (
    <div className="field">
      <label htmlFor={id}>{label}</label>
      <select className="select" {...attributes} {...select}>
        {children}
      </select>
      {texts}
    </div>
  );
}

interface ChoiceProps<T extends string> {
  legend: string;
  name: string;
  options: readonly (readonly [T, string])[];
  value: T;
  onChange: (value: T) => void;
  hint?: ReactNode;
}

/** One of a few options, all of them visible. */
export const Choice = <T extends string>({
  legend,
  name,
  options,
  value,
  onChange,
  hint,
}: ChoiceProps<T>) => (
  <fieldset className="field">
    <legend>{legend}</legend>
    <div className="choices">
      {options.map(([option, label]) => (
        <label className="choice" key={option}>
          <input
            type="radio"
            name={name}
            value={option}
            checked={option === value}
            onChange={() => onChange(option)}
          />
          <span>{label}</span>
        </label>
      ))}
    </div>
    {hint && <span className="hint">{hint}</span>}
  </fieldset>
);

interface CheckProps extends InputHTMLAttributes<HTMLInputElement> {
  label: ReactNode;
}

export const Check = ({ label, ...input }: CheckProps) => (
  <label className="check">
    <input type="checkbox" {...input} />
    <span>{label}</span>
  </label>
);
