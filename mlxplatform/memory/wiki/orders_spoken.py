"""How people order a model about, by language: patterns as data, read by :mod:`mlxplatform.memory.wiki.steering`.

Of each language: disregard what was said; be somebody else, from now on, you must; write or delete pages; use tools;
and what models say of themselves and their task. Written for verbose, case-blind regular expressions. ``CLAUSE``
stands for where a clause begins: imperatives that the language also uses for the third person count only there, so
that ordinary statements pass.
"""

from __future__ import annotations

#: Where a clause begins; in Chinese, which does not mark it, also what asks somebody.
CLAUSE = r"(?:^|[.!?:;,¡¿»«\"“”–—-]\s*|\b(?:and|then|und|dann|et|puis|y|luego|e|poi|depois|и|затем)\s+)"
ASKED = r"(?:^|[。！？，：；,:;\s]|请|請|你|并|並|然后|然後)"

ENGLISH = r"""
    \b(?:ignore|disregard|forget|override|bypass)\b[^.!?]{0,40}\b(?:instruction|prompt|rule|polic|above|previous|prior|guard)
    | \b(?:you\ (?:must|are\ now|should\ now|have\ to)|from\ now\ on|pretend\ (?:to|that)|act\ as|new\ instructions?)\b
    | \b(?:write|append|save|create|delete|edit|overwrite|move|rename|link|commit|push|add)\b[^.!?]{0,60}
      (?:\.\./|/etc/|~/|\.git\b|\.md\b|\bMeta/|\bTalk/|\bReference/|\barticles?/|\[\[)
    | \b(?:write|append|save|create|delete|edit|overwrite|move|rename|link|add|forget)\b[^.!?]{0,40}
      \b(?:every|all|each|any|other|the)\ (?:other\ )?(?:articles?|pages?|wiki|notes)\b
    | \b(?:call|invoke|run|use|execute)\b[^.!?]{0,20}\b(?:tool|function|command|shell|memory_[a-z]+)\b
    | \bas\ an?\ (?:ai|language\ model)\b | (?:^|[.!?]\s+)as\ an?\ (?:\w+\ )?assistant\b
    | \bi(?:'m|\ am)\ (?:sorry|unable|an\ ai|not\ able)\b | \bi\ (?:cannot|can't|can\ not|will\ not|won't)\b
    | \b(?:here\ (?:is|are)|below\ is)\ (?:the|a|an|your|my)\b | \blet\ me\ (?:know|write|draft|summari[sz]e)\b
    | \bthe\ (?:notes?|transcript|conversation|prompt|passage)\ (?:says?|states?|mentions?|provided|above|below)\b
    | \b(?:system|developer)\ (?:prompt|message)s?\b | \bfootnote\ markers?\b
"""
GERMAN = r"""
    \b(?:ignorier(?:e|t|en\ sie)?|vergiss|vergesst|vergessen\ sie|missachte|beachte\ nicht|übergeh|umgeh|überschreibe?)\b
      [^.!?]{0,60}(?:anweisung|instruktion|vorgabe|regel|richtlinie|prompt|\bobig|vorherig|bisherig|\bzuvor\b)
    | \b(?:du\ bist|ihr\ seid)\ (?:jetzt|nun|ab\ sofort|fortan)\b | \bsie\ sind\ (?:jetzt|nun|ab\ sofort)\ (?:eine?|der|mein)\b
    | \bvon\ (?:nun|jetzt)\ an\b[^.!?]{0,20}\b(?:du|ihr|antworten)\b
    | \bab\ (?:jetzt|sofort)\b[^.!?]{0,20}\b(?:du|ihr|antworten)\b
    | \btu\ so,?\ als\b | \bgib\ vor\b
    | \b(?:verhalte|verhalten\ sie)\ (?:dich|sich)\b | \b(?:du|ihr)\ (?:musst|müsst|sollst|sollt)\b
    | \bneue[nr]?\ (?:system)?(?:anweisung|instruktion)(?:en)?\b | \bsystem(?:anweisung|nachricht|prompt)(?:en|s)?\b
    | CLAUSE(?:schreibe?|lösche?|erstelle?|ändere|bearbeite|überschreibe?|verschiebe?|benenne|verlinke|füge|ergänze|entferne
      |vergiss)(?:\ (?:sie|du|bitte))?\b[^.!?]{0,50}\b(?:alle[nrms]?|jede[nrms]?|sämtliche[nr]?|andere[nr]?|ganze[ns]?)\b
      [^.!?]{0,20}(?:artikel|seiten?|notizen|wiki)\b
    | CLAUSE(?:rufe?|führe?|nutze|verwende|benutze|starte)\b[^.!?]{0,30}\b(?:werkzeug|tool|funktion|befehl|kommando|shell)
    | \bals\ (?:eine?\ )?(?:ki|sprachmodell|künstliche\ intelligenz|ki-\w+)\b
    | \bich\ bin\ eine?\ (?:ki|sprachmodell)\b | \btut\ mir\ (?:sehr\ )?leid\b
    | \bich\ (?:kann|darf)\ (?:leider|das\ nicht|dir\ (?:dabei\ |das\ )?nicht|ihnen|diese[rn]?\ (?:anfrage|bitte|frage))\b
    | \bhier\ (?:ist|sind|folgt)\ (?:die|der|das|eine?|ihre?|deine?)\b
    | \b(?:die|den|laut)\ (?:notizen|unterhaltung|transkript|gespräch)\b[^.!?]{0,15}\b(?:sag|besag|erwähn|zufolge)
"""
FRENCH = r"""
    \b(?:ignore[zr]?|oublie[zr]?|contourne[zr]?|outrepasse[zr]?|(?:tiens|tenez)\ (?:pas|plus)\ compte
      |(?:fais|faites)\ abstraction)\b[^.!?]{0,60}(?:instruction|consigne|règle|directive|\bprompt|précédent|ci-dessus|antérieur)
    | \b(?:tu\ es|vous\ êtes|tu\ deviens|vous\ devenez)\ (?:maintenant|désormais|à\ présent)\b
    | \bà\ partir\ de\ maintenant\b | \b(?:désormais|dorénavant)\b[^.!?]{0,10}\b(?:tu|vous)\b
    | \b(?:fais|faites)\ (?:comme\ si|semblant)\b | \b(?:agis|agissez)\ (?:comme|en\ tant)\b | \b(?:tu\ dois|vous\ devez)\b
    | \bnouvelles?\ (?:instructions?|consignes?)\b | \b(?:message|invite|instructions?)\ (?:du\ )?système\b
    | CLAUSE(?:écris|écrivez|supprime[zr]?|efface[zr]?|crée[zr]?|modifie[zr]?|renomme[zr]?|déplace[zr]?|ajoute[zr]?|lie[zr]?
      |oublie[zr]?)\b[^.!?]{0,50}\b(?:tous|toutes|chaque|autres|ensemble)\b[^.!?]{0,20}(?:articles?|pages?|notes|wiki)\b
    | CLAUSE(?:appelle|appelez|exécute|exécutez|lance|lancez|utilise|utilisez)\b[^.!?]{0,30}\b(?:outil|fonction|commande|shell)
    | \ben\ tant\ qu(?:e\ |['’])(?:ia|intelligence\ artificielle|assistant\ (?:ia|virtuel)|modèle)\b
    | \bje\ suis\ (?:désolée?|une\ ia|un\ modèle)\b
    | \bje\ ne\ (?:peux|puis)\ (?:pas\ )?(?:vous|t['’]|répondre|aider|fournir|faire\ cela)\b
    | \bvoici\ (?:le|la|les|un|une|votre|mon)\b | \bn['’]hésite[zr]?\ pas\b
"""
SPANISH = r"""
    \b(?:ignor[ae]n?|olvid[ae]n?|descart[ae]n?|(?:haz|haga|hagan)\ caso\ omiso|pas[ae]\ por\ alto|sáltate|elude)\b
      [^.!?]{0,60}(?:instrucci|indicaci|\bregla|directri|\bprompt|anterior|previ[ao]s?\b)
    | \b(?:ahora|desde\ ahora)\ (?:eres|es\ usted|debes)\b | \beres\ ahora\b
    | \b(?:a\ partir\ de\ ahora|de\ ahora\ en\ adelante)\b | \b(?:finge|simula)\ (?:que|ser)\b
    | \b(?:actúa|compórtate)\ como\b | \b(?:debes|tienes\ que)\b | \bnuevas?\ instrucci(?:ón|ones)\b
    | \b(?:mensaje|indicaciones|instrucciones)\ del\ sistema\b
    | CLAUSE(?:escrib[ae]|borr[ae]|elimin[ae]|cre[ae]|modific[ae]|edit[ae]|renombr[ae]|muev[ae]|enlaz[ae]|añad[ae]|agreg[ae]
      |olvid[ae])\b[^.!?]{0,50}\b(?:todos|todas|cada|demás|otr[ao]s)\b[^.!?]{0,20}(?:artículos?|páginas?|notas|wiki)\b
    | CLAUSE(?:llama|invoca|invoque|ejecuta|ejecute|usa|utiliza)\b[^.!?]{0,30}\b(?:herramienta|función|comando|shell)
    | \bcomo\ (?:una?\ )?(?:ia|inteligencia\ artificial|modelo\ de\ lenguaje|asistente\ (?:de\ ia|virtual))\b
    | \bsoy\ una?\ (?:ia|modelo|asistente)\b | \blo\ siento\b | \bno\ puedo\ (?:ayudar|responder|proporcionar|cumplir|hacer\ eso)
     | \baquí\ (?:está|están|tienes|tiene)\b
"""
ITALIAN_AND_PORTUGUESE = r"""
    \b(?:ignora(?:te|re)?|dimentica(?:te)?|ignorem?|esqueça|esquece|desconsidere)\b
      [^.!?]{0,60}(?:istruzion|indicazion|\bregol|instruç|\bregra|\bprompt|precedent|anterior)
    | \bd['’a]\ ?ora\ in\ poi\b | \bfai\ finta\b | \bcomportati\ come\b | \b(?:ora|adesso)\ sei\b | \bnuove\ istruzioni\b
    | \b(?:a\ partir\ de\ agora|de\ agora\ em\ diante|finja|aja\ como|novas\ instruções)\b
    | \bagora\ (?:você|tu)\ (?:é|és)\b | \bvocê\ deve\b
    | CLAUSE(?:scrivi|cancella|elimina|crea|modifica|rinomina|aggiungi|escreva|apague|exclua|crie|edite|renomeie|adicione)\b
      [^.!?]{0,50}\b(?:tutt[ei]|ogni|tod[ao]s|cada|outr[ao]s)\b[^.!?]{0,20}(?:articol|pagin|páginas?|artigos?|\bnote\b|notas|wiki)
    | \bcome\ (?:ia|modello\ linguistico)\b | \bmi\ dispiace\b
    | \bcomo\ (?:uma?\ )?modelo\ de\ linguagem\b | \bsinto\ muito\b
"""
RUSSIAN = r"""
    \b(?:про)?(?:игнорируй|игнорируйте|забудь|забудьте|не\ обращай(?:те)?\ внимания)\b
      [^.!?]{0,60}(?:инструкц|указан|правил|команд|предыдущ|\bвыше|промпт|систем)
    | \b(?:ты\ теперь|теперь\ ты|вы\ теперь|отныне|с\ этого\ момента|притворись|веди\ себя\ как|действуй\ как)\b
    | \b(?:ты\ должен|ты\ должна|вы\ должны)\b | \bнов(?:ые|ая)\ инструкци[ия]\b | \bсистемн(?:ое|ый)\ (?:сообщение|промпт)\b
    | \b(?:напиши|удали|создай|измени|отредактируй|переименуй|перемести|добавь|сотри|свяжи)(?:те)?\b
      [^.!?]{0,50}\b(?:все|всех|всё|кажд\w+|други\w+)\b[^.!?]{0,20}(?:стат|страниц|замет|вики)
    | \b(?:вызови|запусти|выполни|используй)(?:те)?\b[^.!?]{0,30}(?:инструмент|функци|команд)
    | \bкак\ (?:ии|искусственный\ интеллект|языковая\ модель)\b | \bя\ не\ могу\ (?:помочь|ответить|выполнить)
    | \bк\ сожалению,\ я\b
"""
CHINESE = r"""
    (?:忽略|无视|無視|忘记|忘記|忘掉|不要理会|不要理會|不必理会|不理会|跳过|跳過|绕过|繞過|覆盖|覆蓋|违反|違反)(?!了|过|過)[^。！？]{0,20}
      (?:指令|指示|说明|說明|提示|规则|規則|要求|之前|以上|上述|先前|前面|系统|系統)
    | (?:之前|以上|上述|先前|前面)[^。！？]{0,12}(?:指令|指示|提示|规则|規則)[^。！？]{0,12}
      (?:忽略|无视|無視|忘记|忘記|作废|作廢|无效|無效)
    | 你(?:现在|現在|今后|今後|从此)[^。！？]{0,4}是
    | (?:从|從)(?:现在|現在)(?:起|开始|開始)[^。！？]{0,4}你 | 假装|假裝|你(?:必须|必須) | 新的?(?:指令|指示) | 系统提示|系統提示
    | ASKED(?:删除|刪除|修改|编辑|編輯|重命名|覆盖|覆蓋|写入|寫入|添加|创建|創建|移动|移動|链接|鏈接)(?!了|过|過)[^。！？]{0,20}
      (?:所有|全部|每个|每個|每一|其他|整个|整個)[^。！？]{0,6}(?:文章|页面|頁面|条目|條目|笔记|筆記|维基|維基)
    | (?:所有|全部|每个|每個|每一|其他|整个|整個)[^。！？]{0,4}(?:文章|页面|頁面|条目|條目|笔记|筆記|维基|維基)[^。！？]{0,8}
      (?:删除|刪除|删掉|修改|编辑|編輯|重命名|覆盖|覆蓋)
    | ASKED(?:调用|調用|执行|執行|运行|運行)(?!了|过|過)[^。！？]{0,12}(?:工具|函数|函數|命令|指令)
    | 作为(?:一个|一名)?(?:ai|人工智能|语言模型|助手)
    | 作為(?:一個|一名)?(?:ai|人工智慧|語言模型|助手)
    | 我是(?:一个|一個)?(?:ai|人工智|语言模型|語言模型)
    | 抱歉[，,]?我 | 对不起|對不起 | 我(?:无法|無法|不能)(?:回答|提供|帮|幫|协助|協助|完成|满足|滿足) | 以下(?:是|为|為)
"""
JAPANESE = r"""
    (?:指示|命令|プロンプト|ルール|規則|指令|以前|上記|これまで|前述|先ほど)[^。！？]{0,20}
      (?:無視(?:し(?:て|ろ|なさい)|せよ|すること)|忘れ(?:て|ろ|なさい|ること)|従わないで|従うな|(?:破棄|上書き|回避)し(?:て|ろ|なさい))
    | (?:あなた|君|お前)は(?:今から|これから|今|もう) | 今から(?:あなた|は) | のふりをし | として(?:振る舞|ふるまっ|行動し)
    | しなければなりません | 新し(?:い|く)(?:指示|命令) | 新たな(?:指示|命令) | システムプロンプト
    | (?:すべて|全て|全部|他|ほか|各|あらゆる)の?[^。！？]{0,4}(?:記事|ページ|ノート|ウィキ)[^。！？]{0,12}
      (?:削除|編集|変更|上書き|追加|移動|リンク)(?:して(?:ください|下さい|くれ|。|$)|しろ|せよ|しなさい|すること)
    | (?:ツール|関数|コマンド|シェル)[^。！？]{0,10}(?:呼び出し|実行し|起動し|使っ)て(?:ください|下さい|くれ|。|$)
    | (?:ai|人工知能|言語モデル|aiアシスタント)として | 申し訳(?:あり|ござい) | 以下(?:は|が|に示)
"""
KOREAN = r"""
    (?:이전|위의|앞의|앞선|모든|기존|시스템)[^.!?]{0,15}(?:지시|명령|지침|규칙|프롬프트)[^.!?]{0,15}(?:무시|잊어|잊으|따르지)
    | (?:너는|당신은|넌)\ ?(?:이제|지금) | (?:지금부터|이제부터)\ (?:너|당신)
    | 인\ ?척\ | 처럼\ 행동 | 새로운\ (?:지시|명령) | 시스템\ ?프롬프트
    | (?:모든|다른|전체)\ ?(?:문서|페이지|기사|노트|위키)[^.!?]{0,12}(?:삭제|편집|수정|추가|이동)\ ?(?:해|하라|하세요|하십시오)
    | (?:도구|함수|명령)[^.!?]{0,10}(?:호출|실행)\ ?(?:해|하라|하세요|하십시오)
    | (?:ai|인공지능|언어\ 모델)(?:로서|으로서) | 죄송(?:합니다|하지만)
"""

PATTERNS = tuple(
    language.replace("CLAUSE", CLAUSE).replace("ASKED", ASKED)
    for language in (ENGLISH, GERMAN, FRENCH, SPANISH, ITALIAN_AND_PORTUGUESE, RUSSIAN, CHINESE, JAPANESE, KOREAN)
)
#: What opens a turn of somebody else in a transcript, in the same languages.
ROLES = r"""system|assistant|user|human|ai|developer|tool|bot|instructions?|response|prompt|système|utilisateur|consignes?
    |sistema|usuario|instrucciones|benutzer|anweisung(?:en)?|система|пользователь|ассистент|系统|系統|用户|用戶|助手|指令
    |システム|ユーザー|アシスタント|指示|시스템|사용자"""
