"""Chat templates as Hugging Face transformers renders them: text/templates.json.

Each template is short and made for the features that real ones use; the families whose habits it
follows are named. A case that raises has "error" instead of "text".
"""

import datetime
import json
from pathlib import Path

from transformers.utils import chat_template_utils

OUT = Path(__file__).parent / "text" / "templates.json"

NOW = datetime.datetime(2024, 7, 26, 8, 5, 3)


class FixedDatetime(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return NOW


USER = {"role": "user", "content": "Hi there"}
SYSTEM = {"role": "system", "content": "Be brief."}
ANSWER = {"role": "assistant", "content": "Hello!\n"}
CHAT = [SYSTEM, USER, ANSWER, {"role": "user", "content": "  And\n<|im_end|> now?  "}]
PARTS = [{"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "image"}, {"type": "text", "text": "two"}]}]
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "It's <b>the</b> weather & more \"é\"",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer", "default": 3, "x": 1.5, "n": None, "t": True, "e": []}}, "required": ["city"]},
    },
}
CALL = {"role": "assistant", "content": None, "tool_calls": [{"type": "function", "function": {"name": "get_weather", "arguments": {"city": "Zürich", "days": 2}}}]}
RESULT = {"role": "tool", "name": "get_weather", "content": "{\"temp\": 21}"}
TOOL_CHAT = [USER, CALL, RESULT, {"role": "assistant", "content": "21 degrees"}, USER]
THOUGHT = {"role": "assistant", "content": "<think>\nhm, 2+2\n</think>\n\nIt is 4."}

CHATML = """{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nYou are helpful.<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""

# qwen2.5 and qwen3: tools as JSON lines, consecutive tool results share a turn, thinking is cut.
TOOLS = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
    {{- "# Tools\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == "assistant" %}
        {%- set content = message.content if message.content is string else '' %}
        {%- set reasoning = '' %}
        {%- if '</think>' in content %}
            {%- set reasoning = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index and reasoning %}
            {{- '<|im_start|>assistant\\n<think>\\n' + reasoning.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
        {%- else %}
            {{- '<|im_start|>assistant\\n' + content }}
        {%- endif %}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function %}{%- set tool_call = tool_call.function %}{%- endif %}
            {{- '\\n<tool_call>\\n{"name": "' + tool_call.name + '", "arguments": ' }}
            {%- if tool_call.arguments is string %}{{- tool_call.arguments }}{%- else %}{{- tool_call.arguments | tojson }}{%- endif %}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- elif message.role == 'user' or not loop.first or not tools %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""

# llama 2 and mistral: system folded into the first user turn, alternation enforced.
LLAMA2 = """{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system_message = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}{% set system_message = false %}{% endif %}{% for message in loop_messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}{% if loop.index0 == 0 and system_message != false %}{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}{% else %}{% set content = message['content'] %}{% endif %}{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}{% elif message['role'] == 'assistant' %}{{ ' '  + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"""

# llama 3: headers, trim, the date, tools indented.
LLAMA3 = """{{- bos_token }}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "26 Jul 2024" %}
    {%- endif %}
{%- endif %}
{#- A comment that goes. #}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{{- "Today Date: " + date_string + "\\n\\n" }}
{%- if tools is not none %}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
{%- endif %}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("This model only supports single tool-calls at once!") }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}
        {{- '{"name": "' + tool_call.name + '", ' }}
        {{- '"parameters": ' }}
        {{- tool_call.arguments | tojson }}
        {{- "}" }}
        {{- "<|eot_id|>" }}
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|eot_id|>" }}
    {%- else %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

# gemma 3: content of parts or text, the system text before the first user turn.
GEMMA = """{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- if messages[0]['content'] is string -%}
        {%- set first_user_prefix = messages[0]['content'] + '\n\n' -%}
    {%- else -%}
        {%- set first_user_prefix = messages[0]['content'][0]['text'] + '\n\n' -%}
    {%- endif -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first_user_prefix = "" -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("Conversation roles must alternate user/assistant/user/assistant/...") }}
    {%- endif -%}
    {%- set role = "model" if message['role'] == 'assistant' else message['role'] -%}
    {{ '<start_of_turn>' + role + '\n' + (first_user_prefix if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {%- if item['type'] == 'image' -%}
                {{ '<start_of_image>' }}
            {%- elif item['type'] == 'text' -%}
                {{ item['text'] | trim }}
            {%- endif -%}
        {%- endfor -%}
    {%- else -%}
        {{ raise_exception("Invalid content type") }}
    {%- endif -%}
    {{ '<end_of_turn>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{'<start_of_turn>model\n'}}
{%- endif -%}
"""

# phi 3: lines of control blocks, which trim_blocks and lstrip_blocks take away.
PHI = """{% for message in messages %}
    {% if message['role'] == 'system' %}
{{ '<|system|>\n' + message['content'] + '<|end|>\n' }}
    {% elif message['role'] in ['user', 'tool'] %}
{{ '<|user|>\n' + message['content'] + '<|end|>\n' }}
    {% else %}
{{ '<|assistant|>\n' + message['content'] + '<|end|>\n' }}
    {% endif %}
{% endfor %}
{% if add_generation_prompt %}
<|assistant|>
{% else %}
{{ eos_token }}
{% endif %}
"""

# granite: the date in words, a default system text.
GRANITE = """{%- if messages[0]['role'] == 'system' %}{%- set system_message = messages[0]['content'] %}{%- set loop_messages = messages[1:] %}{%- else %}{%- set system_message = "Knowledge Cutoff Date: April 2024.\nToday's Date: " + strftime_now('%B %d, %Y') + "." %}{%- set loop_messages = messages %}{%- endif %}{{- '<|start_of_role|>system<|end_of_role|>' + system_message + '<|end_of_text|>\n' }}{%- for message in loop_messages %}{{- '<|start_of_role|>' + message['role'] + '<|end_of_role|>' + message['content'] + '<|end_of_text|>\n' }}{%- if loop.last and add_generation_prompt %}{{- '<|start_of_role|>assistant<|end_of_role|>' }}{%- endif %}{%- endfor %}"""

# deepseek: everything collected in a namespace first.
DEEPSEEK = """{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}{% set ns = namespace(is_first=false, system_prompt='', is_first_sp=true) %}{%- for message in messages %}{%- if message['role'] == 'system' %}{% if ns.is_first_sp %}{% set ns.system_prompt = ns.system_prompt + message['content'] %}{% set ns.is_first_sp = false %}{% else %}{% set ns.system_prompt = ns.system_prompt + '\\n\\n' + message['content'] %}{% endif %}{%- endif %}{%- endfor %}{{ bos_token }}{{ ns.system_prompt }}{%- for message in messages %}{%- if message['role'] == 'user' %}{{'<｜User｜>' + message['content']}}{%- endif %}{%- if message['role'] == 'assistant' and message['content'] is not none %}{% set content = message['content'] %}{% if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}{{'<｜Assistant｜>' + content + '<｜end▁of▁sentence｜>'}}{%- endif %}{%- endfor %}{% if add_generation_prompt %}{{'<｜Assistant｜><think>\\n'}}{% endif %}"""

FEATURES = {
    "print_values": "{{ none }}|{{ true }}|{{ false }}|{{ 1 }}|{{ 1.0 }}|{{ 2.5e20 }}|{{ 1e-7 }}|{{ [1, 'a', none, \"it's\"] }}|{{ {'k': [true]} }}|{{ missing }}|{{ 7 // 2 }}|{{ 7 / 2 }}|{{ -7 % 3 }}|{{ 2 ** 10 }}",
    "slices": "{{ 'abcdef'[::-1] }}|{{ 'abcdef'[1:4] }}|{{ 'abcdef'[-2:] }}|{{ [1,2,3,4][::2] }}|{{ messages[::-1][0].role }}|{{ messages[-1]['role'] }}",
    "string_methods": "{{ ' a b '.strip() }}|{{ 'xxaxx'.strip('x') }}|{{ 'xxa'.lstrip('x') }}|{{ 'axx'.rstrip('x') }}|{{ 'a,b,c'.split(',') }}|{{ 'a b  c'.split() }}|{{ 'a-b-c'.split('-', 1) }}|{{ 'Abc'.upper() }}{{ 'Abc'.lower() }}|{{ 'a b'.title() }}|{{ 'abc'.capitalize() }}|{{ 'abc'.startswith('ab') }}|{{ 'abc'.endswith('bc') }}|{{ 'abcabc'.replace('b', 'X') }}|{{ 'abcabc'.replace('b', 'X', 1) }}|{{ 'a.b'.find('.') }}|{{ ','.join(['a', 'b']) }}|{{ '{}-{}'.format(1, 'z') }}|{{ 'aXbX'.count('X') }}|{{ '12'.isdigit() }}",
    "filters": "{{ ' x ' | trim }}|{{ [3,1,2] | sort }}|{{ [1,2] | first }}{{ [1,2] | last }}|{{ 'abc' | length }}|{{ ['a','b'] | join('+') }}|{{ none | default('d') }}|{{ missing | default('d') }}|{{ '' | default('d', true) }}|{{ 'a b' | title }}|{{ 3.7 | int }}|{{ '5' | int + 1 }}|{{ [1,2,3] | map('string') | join(',') }}|{{ messages | map(attribute='role') | join(',') }}|{{ messages | selectattr('role', 'equalto', 'user') | list | length }}|{{ messages | rejectattr('role', 'equalto', 'user') | map(attribute='role') | list }}|{{ {'b': 1, 'a': 2} | dictsort }}|{{ 'x' | upper }}|{{ true | string }}|{{ 'a\nb' | indent(2) }}|{{ [1, [2]] | string }}|{{ {'a': 1}.items() | list }}|{{ 'abc' | list }}|{{ 5 | float }}|{{ 'a' | replace('a', 'b') }}",
    "tests": "{{ 1 is defined }}|{{ x is defined }}|{{ none is none }}|{{ 'a' is string }}|{{ 1 is number }}|{{ {} is mapping }}|{{ [] is sequence }}|{{ 'a' is iterable }}|{{ 2 is even }}|{{ 3 is odd }}|{{ true is boolean }}|{{ 'a' in ['a'] }}|{{ 'a' not in 'abc' }}|{{ 1 == 1.0 }}|{{ false is false }}|{{ 'k' in {'k': 1} }}|{{ 1 if false }}|{{ not none }}|{{ [] or 'e' }}|{{ 'a' and 'b' }}",
    "loops": "{% for m in messages %}{{ loop.index }}/{{ loop.index0 }}/{{ loop.revindex }}/{{ loop.first }}/{{ loop.last }}/{{ loop.length }}/{{ loop.previtem.role if loop.previtem is defined else '-' }}/{{ loop.nextitem is defined }};{% else %}none{% endfor %}{% for i in range(5) %}{% if i == 1 %}{% continue %}{% endif %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}{% for k, v in {'a': 1, 'b': 2}.items() %}{{ k }}={{ v }},{% endfor %}{% for x in [] %}{% else %}empty{% endfor %}{% for m in messages if m.role == 'user' %}[{{ m.content }}]{% endfor %}",
    "macros_and_sets": "{% macro turn(role, text='?') -%}<{{ role }}>{{ text }}{%- endmacro %}{{ turn('a') }}{{ turn('b', text='t') }}{% set block %} in {{ 1 + 1 }} {% endset %}[{{ block }}]{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set ns = namespace(n=0) %}{% for i in [1,2,3] %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}{% set x = 'outer' %}{% for i in [1] %}{% set x = 'inner' %}{% endfor %}{{ x }}",
    "whitespace": "a\n  {% if true %}\n  b\n  {% endif %}\nc {{- ' d ' -}} e\n{# comment #}\n  {#- x -#}  f\n\n  {%+ if true %}g{% endif +%}\nh\n{% raw %}{{ raw }}{% endraw %}\n",
    "generation": "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}{%- generation -%} x {%- endgeneration %}{% endfor %}",
    "tojson": "{{ tools | tojson }}|{{ tools[0] | tojson(indent=2) }}|{{ {'b': '<>&\\'', 'a': [1, 2.0, true, none]} | tojson }}|{{ {'b': 1, 'a': []} | tojson(sort_keys=true) }}|{{ 'é\\n\"' | tojson }}|{{ 'é😀' | tojson(ensure_ascii=true) }}|{{ [1,{'a':2}] | tojson(separators=(',', ':')) }}|{{ {} | tojson(indent=2) }}",
    "concat": "{{ 'a' ~ 1 ~ 'b' }}|{{ 'a' + 'b' * 3 }}|{{ [1] + [2] }}|{{ 'x' if messages else 'y' }}|{{ (1, 2)[1] }}|{{ messages[0]['content'][:2] }}|{{ messages | length > 1 and true }}",
    "date": "{{ strftime_now('%B %d, %Y') }}|{{ strftime_now('%Y-%m-%d %H:%M:%S') }}|{{ strftime_now('%A %d %b %Y') }}|{{ strftime_now('%-d/%j') }}",
}


def cases():
    special = {"bos_token": "<s>", "eos_token": "</s>"}
    yield "chatml", CHATML, [USER], {"add_generation_prompt": True}
    yield "chatml_system", CHATML, CHAT, {"add_generation_prompt": True}
    yield "chatml_history", CHATML, CHAT, {}
    yield "tools", TOOLS, TOOL_CHAT, {"tools": [TOOL, TOOL], "add_generation_prompt": True}
    yield "tools_system", TOOLS, [SYSTEM] + TOOL_CHAT[:3], {"tools": [TOOL]}
    yield "tools_many_results", TOOLS, [USER, CALL, RESULT, RESULT], {"tools": [TOOL], "add_generation_prompt": True}
    yield "tools_none", TOOLS, CHAT, {"add_generation_prompt": True}
    yield "thinking", TOOLS, [USER, THOUGHT], {}
    yield "thinking_past", TOOLS, [USER, THOUGHT, USER], {"add_generation_prompt": True}
    yield "thinking_off", TOOLS, [USER], {"add_generation_prompt": True, "enable_thinking": False}
    yield "llama2", LLAMA2, CHAT, {}
    yield "llama2_plain", LLAMA2, [USER, ANSWER, USER], {}
    yield "llama2_raises", LLAMA2, [USER, USER, ANSWER], {}
    yield "llama3", LLAMA3, CHAT, {"add_generation_prompt": True}
    yield "llama3_tools", LLAMA3, TOOL_CHAT, {"tools": [TOOL], "add_generation_prompt": True}
    yield "llama3_date", LLAMA3, [USER], {"date_string": "1 Jan 2000"}
    yield "gemma", GEMMA, CHAT, {"add_generation_prompt": True}
    yield "gemma_parts", GEMMA, PARTS, {"add_generation_prompt": True}
    yield "gemma_raises", GEMMA, [USER, USER], {}
    yield "phi", PHI, CHAT, {"add_generation_prompt": True}
    yield "phi_closed", PHI, CHAT, {}
    yield "granite", GRANITE, [USER], {"add_generation_prompt": True}
    yield "granite_system", GRANITE, CHAT, {"add_generation_prompt": True}
    yield "deepseek", DEEPSEEK, [SYSTEM, SYSTEM, USER, THOUGHT, USER], {"add_generation_prompt": True}
    for name, template in FEATURES.items():
        yield name, template, CHAT[1:], {"tools": [TOOL]}


def main():
    chat_template_utils.datetime = type("Module", (), {"now": FixedDatetime.now, "datetime": FixedDatetime})
    rows = []
    for name, template, messages, options in cases():
        row = {"name": name, "template": template, "messages": messages, "options": options}
        variables = {"tools": None, "documents": None, "add_generation_prompt": False, "bos_token": "<s>", "eos_token": "</s>"}
        variables |= options
        try:
            compiled = chat_template_utils._compile_jinja_template(template)
            row["text"] = compiled.render(messages=messages, **variables)
        except Exception as error:
            row["error"] = str(error)
        rows.append(row)
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text("[\n" + ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n]\n")


if __name__ == "__main__":
    main()
